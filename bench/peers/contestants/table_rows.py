"""A table of PostgreSQL, polled by hand: a poller locks rows that are due, runs them, and writes their next times.

What a careful team writes: rows stay locked while they run, so that a killed process loses nothing, pollers pass over
the rows of others, and one statement moves many.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

from psycopg import AsyncConnection

from bench.peers.work import Fresh, Handle, Order, Send

CLAIMED_AT_ONCE = 500
POLL_SECONDS = 0.5
MOVE_SECONDS = 0.05
FILLED_AT_ONCE = 5000

SCHEMA = """
CREATE TABLE messages (
    id text PRIMARY KEY, run_at timestamptz NOT NULL, version integer NOT NULL DEFAULT 0, payload jsonb NOT NULL
);
CREATE INDEX messages_run_at ON messages (run_at)
"""
STORE = "INSERT INTO messages (id, run_at, payload) SELECT * FROM unnest(%s::text[], %s::timestamptz[], %s::jsonb[])"
CLAIM = """
SELECT id, version, payload FROM messages WHERE run_at <= now() ORDER BY run_at LIMIT %s FOR UPDATE SKIP LOCKED
"""
LEASE = """
UPDATE messages SET run_at = now() + interval '30 seconds' FROM (
    SELECT id FROM messages WHERE run_at <= now() ORDER BY run_at LIMIT %s FOR UPDATE SKIP LOCKED
) AS due WHERE messages.id = due.id RETURNING messages.id, messages.version
"""
"""A row whose call may last: it stays locked for no transaction, and is due again if its process has died."""

MOVE = """
UPDATE messages SET run_at = clock_timestamp() + later.seconds * interval '1 second', version = version + 1
FROM unnest(%s::text[], %s::float8[]) AS later (id, seconds) WHERE messages.id = later.id
"""


async def fill(order: Order) -> None:
    """Make the table, and store all messages."""
    async with await _connect(order) as connection:
        await connection.execute(SCHEMA)
        dues = list(zip(order.message_ids(), order.first_dues(), strict=True))
        for first in range(0, len(dues), FILLED_AT_ONCE):
            await _store(connection, order, dues[first : first + FILLED_AT_ONCE])


@contextlib.asynccontextmanager
async def sending(order: Order) -> AsyncGenerator[Send]:
    """Connect, to store messages beside those that serve."""
    async with await _connect(order) as connection:
        yield lambda fresh: _store(connection, order, fresh)


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""
    if order.in_flight:
        await _serve_freely(order, handle)
    async with await _connect(order) as connection:
        while True:
            if not await _run_some(connection, handle):
                await asyncio.sleep(POLL_SECONDS)


async def _serve_freely(order: Order, handle: Handle) -> None:
    """Run each row by itself, so that a slow call holds up no other."""
    slots = asyncio.Semaphore(order.in_flight)
    ended: list[tuple[str, float]] = []

    async def run(name: str, version: int) -> None:
        ended.append((name, await handle(name, version)))
        slots.release()

    async with await _connect(order) as claiming, await _connect(order) as moving, asyncio.TaskGroup() as tasks:
        tasks.create_task(_move_often(moving, ended))
        while True:
            rows = await (await claiming.execute(LEASE, [CLAIMED_AT_ONCE])).fetchall()
            for name, version in rows:
                await slots.acquire()
                tasks.create_task(run(name, version))
            if len(rows) < CLAIMED_AT_ONCE:
                await asyncio.sleep(POLL_SECONDS)


async def _move_often(connection: AsyncConnection, ended: list[tuple[str, float]]) -> None:
    while True:
        await asyncio.sleep(MOVE_SECONDS)
        if some := ended[:]:
            ended.clear()
            await connection.execute(MOVE, [[name for name, _ in some], [delay for _, delay in some]])


async def _connect(order: Order) -> AsyncConnection:
    return await AsyncConnection.connect(order.addresses["postgres"], autocommit=True)


async def _store(connection: AsyncConnection, order: Order, fresh: Fresh) -> None:
    names = [name for name, _ in fresh]
    moments = [datetime.fromtimestamp(due, UTC) for _, due in fresh]
    await connection.execute(STORE, [names, moments, [json.dumps(order.payload(name)) for name in names]])


async def _run_some(connection: AsyncConnection, handle: Handle) -> bool:
    """Run rows that are due; says whether there were any."""
    async with connection.transaction():
        claimed = await (await connection.execute(CLAIM, [CLAIMED_AT_ONCE])).fetchall()
        if claimed:
            delays = await asyncio.gather(*(handle(name, version) for name, version, _ in claimed))
            await connection.execute(MOVE, [[name for name, *_ in claimed], delays])
    return bool(claimed)
