"""Temporal's server and its SQL tool, built from the Go module proxy once and kept in the user's cache."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import Misconfigured
from starter.local.kafka.jars import find_cache
from starter.local.supervised_process import last_line
from starter.local.terminal import echo_err

VERSION = "1.32.0"  # the version of the embedded server too, so that the two differ only in the database
MODULE = f"go.temporal.io/server@v{VERSION}"
PACKAGES = ("go.temporal.io/server/cmd/server", "go.temporal.io/server/cmd/tools/sql")
GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")
MARK = "built"

_VERSION_LINE = re.compile(r'^const (Version|VisibilityVersion) = "([\d.]+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """A folder, in the user's cache by default, with what was built: all is there once the mark is, with its versions.

    `server` runs all four services in one process; `sql` creates tables and stores their version; `temporal.sql` and
    `visibility.sql` are the tables, as shipped by Temporal.
    """

    folder: Path = field(default_factory=lambda: find_cache().parent / f"temporal-server-{VERSION}")

    @property
    def is_built(self) -> bool:
        """Whether everything is built; the mark is written last."""
        return (self.folder / MARK).exists()

    def schema_version(self, database: str) -> str:
        """Give the version of the tables of `temporal` or `visibility`."""
        return json.loads((self.folder / MARK).read_text())[database]


def build_program() -> Program:
    """Build the program once, in some minutes and with 2 GB of Go's caches; raises Misconfigured if that fails."""
    program = Program()
    if program.is_built:
        return program

    go = find_go()
    echo_err(f"building Temporal's server {VERSION} into {program.folder}; this takes some minutes, once")
    program.folder.parent.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory(prefix=f"{program.folder.name}-", dir=program.folder.parent) as made:
        folder = Path(made, "whole")
        folder.mkdir()
        found = json.loads(run_program([go, "mod", "download", "-json", MODULE], f"'{go} mod' failed"))
        _copy_schema(Path(found["Dir"], "schema", "postgresql", "v12"), folder)
        install = [go, "install", "-ldflags=-s -w", *(f"{package}@v{VERSION}" for package in PACKAGES)]
        run_program(install, f"'{go} install' failed", GOBIN=str(folder))
        # renamed only when complete, so that an interrupted build is never taken for a finished one
        shutil.rmtree(program.folder, ignore_errors=True)
        folder.rename(program.folder)

    return program


def find_go() -> str:
    """Give the Go program; raises Misconfigured when there is none."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *GO_FOLDERS])
    found = shutil.which("go", path=path)
    if found is None:
        raise Misconfigured(
            f"Temporal's server {VERSION} is not built yet, which needs Go; "
            "install Go (go.dev/doc/install) or put it on the PATH, and try again"
        )
    return found


def _copy_schema(source: Path, folder: Path) -> None:
    versions = dict(_VERSION_LINE.findall((source / "version.go").read_text()))
    for database in ("temporal", "visibility"):
        shutil.copyfile(source / database / "schema.sql", folder / f"{database}.sql")
    mark = {"temporal": versions["Version"], "visibility": versions["VisibilityVersion"]}
    (folder / MARK).write_text(json.dumps(mark) + "\n")


def run_program(command: Sequence[str], failure: str, **variables: str) -> str:
    """Run a program to its end and give its output; raises Misconfigured with the failure and its last line."""
    done = subprocess.run(  # noqa: S603 — our own
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Misconfigured(f"{failure}: {last_line(done.stderr or done.stdout)}; mend that and try again")
    return done.stdout
