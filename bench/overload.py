"""Five thousand messages due in the same second on one starved worker: no task times out, no handler runs twice.

The steady rate is measured first, on messages that are always overdue. A burner process takes a core away. The naive
case is the same herd with what a first try would set: 200 slots for workflow tasks.
"""

import asyncio
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from temporalio.client import Client

from bench import lasting_overload
from bench.harness import fresh_server, metric_total, new_prefix, read_count, report, run_worker
from bench.worker_process import KIND, Order
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.insight.doctor.deliveries import fetch_deliveries
from starter.local.supervised_process import kill_supervised, start_supervised
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

MESSAGES = 5000
SECONDS = 75.0  # longer than any timeout of a task or a call, or none could be seen
HOURS_AWAY = 3600.0
TIMEOUTS = "start_to_close_timeout"  # of workflow tasks and of calls
NAIVE = {"slots": 200, "cache": 1000}


async def main(arguments: list[str]) -> None:
    """Measure the steady rate and the overload, both with a burner beside them; an argument changes the count.

    `lasting` measures half an hour of overload instead, or as many minutes as a further argument says.
    """
    if arguments[:1] == ["lasting"]:
        await lasting_overload.measure(read_count(arguments[1:], lasting_overload.MINUTES))
        return
    count = read_count(arguments, MESSAGES)
    rows: list[dict[str, Any]] = []
    for case in ("steady", "overload", "naive"):
        row = await _measure(case, count)
        rows.append(row | {"ratio": row["cycles/s"] / rows[0]["cycles/s"] if rows else 1.0})

    report("overload", rows, note=f"{count:,} due in one second, one worker process, one core taken by a burner")


async def _measure(case: str, count: int) -> dict[str, Any]:
    """Run a case on a server of its own: what a worker has in hand when it ends would time out under the next."""
    async with fresh_server() as server:
        prefix = new_prefix()
        number = count // 2 if case == "steady" else count
        at = await _start(await server.connect(), prefix, number, case)
        await asyncio.sleep(max(0.0, at - time.time()))
        burner = await start_supervised([sys.executable, "-c", "while True: pass"])

        try:
            warmup = 5 if case == "steady" else 0
            order = Order(what="dormice", prefix=prefix, seconds=SECONDS, warmup=warmup)
            used = replace(order, **NAIVE) if case == "naive" else order
            measured = await run_worker(server, used)
        finally:
            await kill_supervised(burner)

        return {
            "case": case,
            "cycles/s": measured.rate,
            "handlers run twice": measured.repeated,
            "timeouts": await metric_total(server, TIMEOUTS),
            "lost deliveries": (await fetch_deliveries(server.metrics_url)).lost,
            "cpu ms/cycle": measured.cpu_ms,
        }


async def _start(client: Client, prefix: str, count: int, case: str) -> float:
    """Start the messages; for the overload all are due in one second, once they are in."""
    at = time.time() if case == "steady" else time.time() + count / 150
    delay = 20.0 if case == "steady" else HOURS_AWAY
    settings = Settings(task_queue_prefix=prefix)

    envelopes = (
        (
            None,
            Envelope(
                kind=KIND,
                id=f"{prefix}-{n}",
                lane="short",
                scheduled_at=datetime.fromtimestamp(at, UTC),
                payload={"delay": delay},
            ),
        )
        for n in range(count)
    )
    async for receipt in BulkStarter(client, settings).start_all(envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt

    return at
