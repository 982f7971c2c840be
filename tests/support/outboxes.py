"""Outboxes in the process of their test, and tables on a real PostgreSQL with rows in them."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Json
from temporalio.client import Client

from activities.api.handler import Handler
from activities.registry import Registry
from cluster.postgres import USER, Postgres
from shared.settings import Settings
from starter.extras.outbox.batch import BatchSender
from starter.extras.outbox.connection import OutboxConnection
from starter.extras.outbox.outbox import Outbox, OutboxOptions
from starter.extras.outbox.table import OutboxTable


def write_dsn(database: Postgres) -> str:
    """Give where a database is, for PostgreSQL's own library."""
    return f"postgresql://{USER}@127.0.0.1:{database.port}/{USER}"


@dataclass(frozen=True, slots=True)
class TableUnderTest:
    """A table of outboxes and the application that fills it; made once, by `make`."""

    database: Postgres
    table: OutboxTable

    @classmethod
    def make(cls, database: Postgres, name: str) -> "TableUnderTest":
        """Make a table as the printed DDL does."""
        table = OutboxTable.read(name)
        database.run(table.ddl)
        return cls(database, table)

    @property
    def dsn(self) -> str:
        """Where its database is."""
        return write_dsn(self.database)

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """Open an application's connection, in which every statement is a transaction unless one is begun."""
        return psycopg.connect(self.dsn, autocommit=True)

    def insert(self, *rows: dict[str, Any]) -> list[int]:
        """Insert rows in one transaction; gives the `seq` of each."""
        with self.connect() as connection, connection.transaction():
            return [insert_row(connection, self.table, row) for row in rows]

    def read(self, columns: str = "seq") -> list[tuple[Any, ...]]:
        """Give the rows that are there, by `seq`."""
        with self.connect() as connection:
            asked = f"SELECT {columns} FROM {self.table} ORDER BY seq"  # noqa: S608 — a test's own
            return connection.execute(asked.encode()).fetchall()


def insert_row(connection: "psycopg.Connection[Any]", table: OutboxTable, row: dict[str, Any]) -> int:
    """Insert a row in the transaction of a connection; one that names its `seq` is there as though it came again."""
    statement = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({}) RETURNING seq").format(
        sql.Identifier(*filter(None, (table.schema, table.name))),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(map(sql.Placeholder, row)),
    )
    values = row | ({"payload": Json(row["payload"])} if "payload" in row else {})
    found = connection.execute(statement, values).fetchone()
    assert found is not None
    return found[0]


@contextlib.asynccontextmanager
async def run_outbox(
    client: Client, settings: Settings, rows: TableUnderTest, *handlers: Handler, **options: Any
) -> AsyncGenerator[Outbox]:
    """Run an outbox for the length of a `with` block; it drains at the end. It hardly ever looks without being told."""
    connection = OutboxConnection.read(rows.dsn, rows.table)
    found = await connection.check()
    sender = BatchSender.of(client, settings, Registry([("the test", h) for h in handlers]), found.source)
    chosen = dataclasses.replace(OutboxOptions(poll=timedelta(minutes=10)), **options)
    outbox = Outbox(connection, found.oid, sender, chosen)
    stopping = asyncio.Event()
    running = asyncio.create_task(outbox.run(stopping))

    try:
        yield outbox
    finally:
        stopping.set()
        await running
