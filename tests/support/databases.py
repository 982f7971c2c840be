"""A real PostgreSQL for tests, private and on loopback."""

import contextlib
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from cluster.postgres import USER, Postgres
from starter.local.supervised_process import find_free_port


@contextlib.contextmanager
def run_postgres() -> Generator[Postgres]:
    """Run PostgreSQL for the length of a `with` block; its files are gone afterwards."""
    # a user of its own must get there, so not below pytest's folders
    folder = Path(tempfile.mkdtemp(prefix="dormice-postgres-"))
    server = Postgres(folder / "data", find_free_port())
    try:
        server.start()
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)


def jdbc_url(database: Postgres) -> str:
    """Give where it is, for JDBC."""
    return f"jdbc:postgresql://127.0.0.1:{database.port}/{USER}?user={USER}"
