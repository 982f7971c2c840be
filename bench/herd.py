"""Twenty thousand one-shot messages at one instant: none early, lost or twice, the first priority first, at the lane's pace.

One noisy tenant has half of them; a quiet one has a single message, due a few seconds later.
"""

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from bench.handlers import HERDED
from bench.harness import fresh_server, new_prefix, noting, report
from examples.ledger import Entry, audit
from shared.envelope import Envelope
from shared.settings import Settings
from starter.bulk import BulkStarter
from starter.embedded import EmbeddedServer
from starter.receipts import StartOutcome

MESSAGES = 20_000
PRIORITIES = 5
STARTS_A_SECOND = 150.0
"""As few as that are sent in time, whatever the machine does."""

STEADY, STEADY_DELAY, STEADY_SECONDS = 3000, 10.0, 40.0
QUIET_AFTER = 5.0
DRAIN_MAX_SECONDS = 900.0


async def main(arguments: list[str]) -> None:
    """Measure the lane's steady rate on messages that are always overdue, then the herd; an argument changes its count."""
    count = int(arguments[0].replace("_", "")) if arguments else MESSAGES
    async with fresh_server() as server:
        rows = [await _measure_herd(server, count, await _measure_steady(server))]
    report("herd", rows, note=f"{count:,} due in one instant, a workflow each, five priorities; one worker process")


async def _measure_steady(server: EmbeddedServer) -> float:
    prefix = new_prefix()
    now = (
        Envelope(kind=HERDED, id=f"{prefix}-{n}", lane="short", payload={"delay": STEADY_DELAY}) for n in range(STEADY)
    )
    await _start(server, prefix, now)
    async with noting(server, prefix) as ledger:
        await asyncio.sleep(STEADY_SECONDS)
        ended = [entry.at for entry in ledger.entries if entry.what == "again"]
    counted = [at for at in ended if at > ended[-1] - STEADY_SECONDS / 2]
    return len(counted) / (counted[-1] - counted[0])


async def _measure_herd(server: EmbeddedServer, count: int, steady: float) -> dict[str, Any]:
    prefix, due = new_prefix(), datetime.now(UTC) + timedelta(seconds=count / STARTS_A_SECOND + 10)
    quiet = Envelope(
        kind=HERDED,
        id="quiet",
        lane="short",
        tenant="quiet",
        payload={},
        scheduled_at=due + timedelta(seconds=QUIET_AFTER),
    )
    await _start(server, prefix, [*_make_herd(count, due), quiet])
    assert datetime.now(UTC) < due, "the herd was not started in time; give a smaller count"
    async with noting(server, prefix) as ledger:
        async with asyncio.timeout((due - datetime.now(UTC)).total_seconds() + DRAIN_MAX_SECONDS):
            while sum(entry.what == "done" for entry in ledger.entries) <= count:  # noqa: ASYNC110 — another process keeps it
                await asyncio.sleep(5)
        entries = ledger.entries
    return {"messages": count, "steady/s": steady} | _judge(entries, due.timestamp(), steady)


def _make_herd(count: int, due: datetime) -> Iterable[Envelope]:
    for number in range(count):
        yield Envelope(
            kind=HERDED,
            id=f"{number % PRIORITIES + 1}-{number}",
            lane="short",
            priority=number % PRIORITIES + 1,
            tenant="noisy" if number % 2 else f"tenant-{number % 100}",
            payload={},
            scheduled_at=due,
        )


def _judge(entries: list[Entry], due: float, steady: float) -> dict[str, Any]:
    expected = {entry.id: due for entry in entries}
    judged = audit(entries, expected=expected, now=time.time(), grace=0)
    done = sorted(entry.at for entry in entries if entry.what == "done")
    drained = done[int(len(done) * 0.05) : int(len(done) * 0.95)]  # without its beginning and its end
    rate = len(drained) / (drained[-1] - drained[0])
    begun = [entry.id for entry in entries if entry.what == "began"]
    last_first = max(place for place, name in enumerate(begun) if name.startswith("1-"))
    lateness = next(entry.at - entry.due_at for entry in entries if entry.id == "quiet")
    return {
        "drained/s": rate,
        "ratio": rate / steady,
        "early": judged.early,
        "not run": judged.messages - judged.cycles,
        "twice": judged.duplicated,
        "of priority 5 before the last of 1": sum(name.startswith("5-") for name in begun[:last_first]),
        "quiet tenant late by s": lateness,
        "drained after s": done[-1] - due,
    }


async def _start(server: EmbeddedServer, prefix: str, envelopes: Iterable[Envelope]) -> None:
    starter = BulkStarter(await server.connect(), Settings(task_queue_prefix=prefix))
    rest = iter(envelopes)
    while group := list(islice(rest, 1000)):
        async for receipt in starter.start_all((None, envelope) for envelope in group):
            assert receipt.outcome is StartOutcome.STARTED, receipt
