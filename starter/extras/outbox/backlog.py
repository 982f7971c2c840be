"""The backlog of an outbox: what its table holds, counted, and the rows that a person has to correct."""

from typing import Any, NamedTuple

from psycopg import AsyncConnection

from starter.extras.outbox.table import OutboxTable

Connection = AsyncConnection[tuple[Any, ...]]


class Backlog(NamedTuple):
    """What the table holds, as last counted."""

    waiting: int
    failed: int
    oldest_seconds: float
    """How long the oldest waiting row has been there."""


class FailedRow(NamedTuple):
    """A row that can't become a message as it is; moments are RFC 3339."""

    seq: int
    action: str
    kind: str
    id: str
    created_at: str
    failed_at: str
    problem: str


async def count_rows(connection: Connection, table: OutboxTable) -> Backlog:
    """Count what the table holds; reads all of it."""
    ((waiting, failed, oldest),) = await (await connection.execute(table.count)).fetchall()
    return Backlog(waiting, failed, max(0.0, oldest or 0.0))


async def read_failed(connection: Connection, table: OutboxTable, limit: int) -> list[FailedRow]:
    """Give the oldest rows that failed."""
    return [FailedRow(*row) for row in await (await connection.execute(table.failed, (limit,))).fetchall()]
