"""The store of one contestant, new and for it alone, and what the store itself counts: rows, dead rows, bytes, log."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

import psutil
from psycopg import AsyncConnection

from bench.harness import ClusterServer, database_bytes, fresh_server, processor_seconds, sum_cpu
from bench.peers.contestants import POSTGRES, TEMPORAL, Contestant
from bench.peers.work import Order
from bench.pollers.calls import Calls
from cluster.cluster import POSTGRES_SETTINGS
from cluster.postgres import CORE, VISIBILITY, Postgres
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a store has used since it began, and what it holds now: bytes, and rows that nobody can see any more.

    `polled_rows` are those that were read by the index of due times, to be run or to be passed over. What a store
    does not count is 0.
    """

    cpu_seconds: float
    table_bytes: int
    index_bytes: int = 0
    dead_rows: int = 0
    transactions: int = 0
    polled_rows: int = 0
    log_bytes: int = 0

    def since(self, before: "Reading") -> "Reading":
        """Give the difference to an earlier reading."""
        return Reading(**{f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)})


class Store(Protocol):
    """What keeps the messages of a contestant."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where the contestant connects."""
        ...

    async def read(self) -> Reading:
        """Read what it counts."""
        ...

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Leave a transaction open for the length of a `with` block, as a long report or a backup does."""
        ...


@contextlib.asynccontextmanager
async def run_store(contestant: Contestant) -> AsyncGenerator[Store]:
    """Run what a contestant needs, thrown away afterwards."""
    if TEMPORAL in contestant.servers:
        async with fresh_server() as server:
            yield _TemporalStore(server)
        return

    folder = Path(tempfile.mkdtemp(prefix="dormice-bench-pollers-"))
    await asyncio.to_thread(folder.chmod, 0o755)  # PostgreSQL's own user must get there

    postgres = Postgres(folder / "postgres", find_free_port(), POSTGRES_SETTINGS)
    try:
        await asyncio.to_thread(postgres.start)
        yield _PostgresStore(postgres)
    finally:
        await asyncio.to_thread(postgres.stop, "immediate")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def run_stage(
    contestant: Contestant, count: int, delay: tuple[float, float]
) -> AsyncGenerator[tuple[Store, Calls, Order]]:
    """Run a contestant's store; gives it with the calls that will be made, and the order for those who make them."""
    with tempfile.TemporaryDirectory(prefix="dormice-bench-ledger-") as folder:
        calls = Calls(Path(folder, "ledger"))
        async with run_store(contestant) as store:
            yield (
                store,
                calls,
                Order(
                    contestant=contestant.name,
                    addresses=store.addresses,
                    count=count,
                    delay=delay,
                    ledger=str(calls.path),
                ),
            )


class _PostgresStore:
    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    @property
    def addresses(self) -> Mapping[str, str]:
        return {POSTGRES: _address(self._postgres, "postgres")}

    async def read(self) -> Reading:
        return await asyncio.to_thread(_read_postgres, self._postgres, ["postgres"], 0.0)

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        return _leave_open(self._postgres, "postgres")


class _TemporalStore:
    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    @property
    def addresses(self) -> Mapping[str, str]:
        return {TEMPORAL: self._server.address}

    async def read(self) -> Reading:
        if not isinstance(self._server, ClusterServer):
            return Reading(cpu_seconds=processor_seconds(self._server), table_bytes=database_bytes(self._server))
        cluster = self._server.cluster
        assert cluster.process is not None
        server_cpu = sum_cpu(cluster.process)
        return await asyncio.to_thread(_read_postgres, cluster.postgres, [CORE, VISIBILITY], server_cpu)

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        assert isinstance(self._server, ClusterServer), "only PostgreSQL is asked to keep what a transaction may see"
        return _leave_open(self._server.cluster.postgres, CORE)


def _address(postgres: Postgres, database: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{postgres.port}/{database}"


@contextlib.asynccontextmanager
async def _leave_open(postgres: Postgres, database: str) -> AsyncGenerator[None]:
    async with await AsyncConnection.connect(_address(postgres, database)) as connection:
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await connection.execute("SELECT count(*) FROM pg_class")
        yield


def _read_postgres(postgres: Postgres, databases: list[str], other_cpu: float) -> Reading:
    """Read what PostgreSQL counts; a transaction shows there a second late."""
    columns = """
        SELECT (SELECT sum(pg_table_size(relid)) FROM pg_stat_user_tables),
               (SELECT sum(pg_indexes_size(relid)) FROM pg_stat_user_tables),
               (SELECT sum(n_dead_tup) FROM pg_stat_user_tables),
               (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),
               (SELECT coalesce(sum(idx_tup_fetch), 0) FROM pg_stat_user_indexes WHERE indexrelname = 'messages_run_at')
    """
    rows = [[int(value or 0) for value in postgres.run(columns, name)[0].split("|")] for name in databases]
    table, index, dead, transactions, polled = map(sum, zip(*rows, strict=True))

    return Reading(
        cpu_seconds=other_cpu + sum_cpu(psutil.Process(postgres.process_id)),
        table_bytes=table,
        index_bytes=index,
        dead_rows=dead,
        transactions=transactions,
        polled_rows=polled,
        log_bytes=int(postgres.run("SELECT pg_current_wal_insert_lsn() - '0/0'")[0]),
    )
