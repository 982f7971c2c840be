"""The outbox: rows of a table in PostgreSQL until they are messages, by one outbox and by two, with a worker beside.

Server, database, worker and outboxes share the machine. A row counts when it is deleted, so once its message is stored.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg

from bench.handlers import KIND_VARIABLE, PACKS_VARIABLE
from bench.harness import fresh_server, new_prefix, read_count, report, working
from bench.pack_filling import HOUR, Filling, to_order
from cluster.cluster import POSTGRES_SETTINGS
from cluster.postgres import USER, Postgres
from shared.messages.json_value import encode_json
from starter.extras.outbox.table import OutboxTable
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised

SIZE = 1000
PACK_COUNT = 200_000
SOLO_COUNT = 4_000
LOOK_SECONDS = 0.1
SINGLE = 300
EVERY_SECONDS = 0.02
INSERT = "INSERT INTO dormice_outbox (action, kind, id, payload, scheduled_at) VALUES (%s, %s, %s, %s, %s)"
ANY_LEFT = "SELECT 1 FROM dormice_outbox LIMIT 1"
Application = psycopg.AsyncConnection[Any]


async def main(arguments: list[str]) -> None:
    """Measure a backlog packed and solo, and rows that come one by one; a number changes how many are packed."""
    count = read_count(arguments, PACK_COUNT)
    rows = [
        await _measure("pack", count, outboxes=1),
        await _measure("pack", count, outboxes=2),
        await _measure("solo", SOLO_COUNT, outboxes=1),
    ]
    note = f"{count:,} packed rows in packs of {SIZE:,}, {SOLO_COUNT:,} solo; then {SINGLE} commits of a row each"
    report("outbox", rows, note)


async def _measure(encoding: str, count: int, *, outboxes: int) -> dict[str, Any]:
    filling = Filling(
        prefix=new_prefix(), count=count, size=SIZE, delay=HOUR, due_in=HOUR, coalesce=300.0, encoding=encoding
    )
    async with _database() as dsn, fresh_server() as server, await Application.connect(dsn, autocommit=True) as fills:
        await fills.execute(OutboxTable().ddl.encode())
        began = time.monotonic()
        async with fills.cursor() as cursor, fills.transaction():
            await cursor.executemany(INSERT, [_to_row(envelope) for _, envelope in filling.envelopes()])
        filled = time.monotonic() - began
        async with working(server, to_order(filling)), contextlib.AsyncExitStack() as stack:
            for _ in range(outboxes):
                await stack.enter_async_context(_outbox(server, filling, dsn))
            rate = await _follow(fills, count)
            latencies = await _insert_singly(fills, filling)

    return {
        "encoding": encoding,
        "outboxes": outboxes,
        "inserted/s": count / filled,
        "rows/s": rate,
        "one by one p50 ms": median(latencies) * 1000,
        "p99 ms": quantiles(latencies, n=100)[98] * 1000,
    }


def _to_row(envelope: Any) -> tuple[Any, ...]:
    return "start", envelope.kind, envelope.id, encode_json(envelope.payload).decode(), envelope.scheduled_at


async def _follow(application: Application, count: int) -> float:
    """Give the rows a second between the first that is gone and the last."""
    samples: list[tuple[float, int]] = []
    while not samples or samples[-1][1] > 0:
        ((left,),) = await (await application.execute("SELECT count(*) FROM dormice_outbox")).fetchall()
        if left < count:
            samples.append((time.monotonic(), left))
        await asyncio.sleep(LOOK_SECONDS)

    first_at, first = samples[0]
    last_at, _ = samples[-1]
    return first / (last_at - first_at)


async def _insert_singly(application: Application, filling: Filling) -> list[float]:
    """Commit rows one by one, and give the seconds until each is gone."""
    _, envelope = next(filling.envelopes())
    latencies: list[float] = []

    for number in range(SINGLE):
        row = _to_row(envelope.model_copy(update={"id": f"single-{number}"}))
        await application.execute(INSERT, row)
        began = time.monotonic()
        while await (await application.execute(ANY_LEFT)).fetchall():  # noqa: ASYNC110 — the database is asked
            await asyncio.sleep(0.001)
        latencies.append(time.monotonic() - began)
        await asyncio.sleep(EVERY_SECONDS)

    return latencies


@contextlib.asynccontextmanager
async def _database() -> AsyncGenerator[str]:
    folder = Path(tempfile.mkdtemp(prefix="dormice-bench-outbox-"))  # to which PostgreSQL's own user gets access
    postgres = Postgres(folder / "data", find_free_port(), POSTGRES_SETTINGS)
    try:
        await asyncio.to_thread(postgres.start)
        yield f"postgresql://{USER}@127.0.0.1:{postgres.port}/{USER}"
    finally:
        await asyncio.to_thread(postgres.stop, "immediate")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def _outbox(server: EmbeddedServer, filling: Filling, dsn: str) -> AsyncGenerator[None]:
    """Run `dormice outbox` for the length of a `with` block."""
    is_packed = filling.encoding == "pack"
    packs = filling.packs if is_packed else 0
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "DORMICE_HANDLERS": "bench.handlers",
        "DORMICE_TASK_QUEUE_PREFIX": filling.prefix,
        KIND_VARIABLE: filling.prefix if is_packed else "bench",
        PACKS_VARIABLE: str(packs),
    }
    process = await start_supervised(
        [sys.executable, "-m", "starter", "outbox", dsn], asyncio.subprocess.DEVNULL, environment
    )

    try:
        yield
    finally:
        await kill_supervised(process)
