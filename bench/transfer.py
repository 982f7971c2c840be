"""The server's transfer queue under busy packs: how long it is, what is put off in it, and how many runs are left over.

`./run bench transfer [MINUTES]` runs 600 messages alone and 6,300 in 23 packs, back every 5 to 30 s, each on its own
server: once as dormice was before (a left run is deleted at once, the server's own settings), once as it is now.
"""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.handlers import DELETE_AFTER_VARIABLE, RESTLESS, RESTLESS_PACKED
from bench.harness import database_bytes, fresh_server, metric_total, new_prefix, noting, read_count, report
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

SOLO = 600
PACKED = 6_300
PACKS = 23
PUT_OFF = "task_dependency_task_not_completed"
SERVERS_OWN = (
    "history.transferProcessorMaxPollRPS=20",
    "history.visibilityProcessorMaxPollRPS=20",
    "history.timerProcessorMaxPollRPS=20",
    'history.transferProcessorUpdateAckInterval="30s"',
    'history.visibilityProcessorUpdateAckInterval="30s"',
    'history.timerProcessorUpdateAckInterval="30s"',
)
WAYS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = {
    "deleted at once, server's own settings": (SERVERS_OWN, {DELETE_AFTER_VARIABLE: "0"}),
    "deleted at once": ((), {DELETE_AFTER_VARIABLE: "0"}),
    "now": ((), {}),
}


async def main(arguments: list[str]) -> None:
    """Measure each way for some minutes, six unless told; a row a minute."""
    minutes = read_count(arguments, 6)
    rows: list[dict[str, Any]] = []
    for way, (config, extra) in WAYS.items():
        async with fresh_server(config=config) as server:
            for row in await _measure(server, minutes, extra):
                rows.append({"way": way} | row)
                print(rows[-1], flush=True)

    note = f"{SOLO} messages alone and {PACKED:,} in {PACKS} packs; put off: tries of deletes and others, so far"
    report("transfer", rows, note=note)


async def _measure(server: EmbeddedServer, minutes: int, extra: Mapping[str, str]) -> list[dict[str, Any]]:
    prefix = new_prefix()
    rows = list[dict[str, Any]]()
    async with noting(server, prefix, **extra) as ledger:
        await _start(server, prefix)
        before = 0

        for minute in range(1, minutes + 1):
            await asyncio.sleep(60)
            done = sum(1 for _ in ledger.entries) // 2
            counts = _count(server, "transfer_tasks", "executions", "current_executions")
            row = {
                "minute": minute,
                "cycles/s": (done - before) / 60,
                "transfer tasks": counts["transfer_tasks"],
                "put off": int(await metric_total(server, PUT_OFF)),
                "left runs": counts["executions"] - counts["current_executions"],
                "disk MB": database_bytes(server) / 1e6,
            }
            before = done
            rows.append(row)

    return rows


async def _start(server: EmbeddedServer, prefix: str) -> None:
    client = await server.connect()
    now = datetime.now(UTC)
    pack = Pack(packs=PACKS, coalesce=timedelta(0))
    starter = BulkStarter(client, Settings(task_queue_prefix=prefix), encodings={RESTLESS_PACKED: pack})
    names = [(RESTLESS, n) for n in range(SOLO)] + [(RESTLESS_PACKED, n) for n in range(PACKED)]

    envelopes = (
        Envelope(kind=kind, id=f"{kind}-{n}", lane="short", scheduled_at=now + timedelta(seconds=n % 30))
        for kind, n in names
    )
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt


def _count(server: EmbeddedServer, *tables: str) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{server.options.database}?mode=ro", uri=True)) as database:
        return {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}  # noqa: S608 — names of ours
