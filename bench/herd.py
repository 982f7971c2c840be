"""Twenty thousand one-shot messages at one instant: none early, lost or twice, by priority, at the lane's pace.

One noisy tenant has half of them; a quiet one has a single message, due a few seconds later.
"""

import asyncio
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from activities.idle.capacity import Capacity
from bench.handlers import HERDED
from bench.harness import fresh_server, new_prefix, noting, read_count, report
from examples.ledger import Entry, Ledger, audit
from shared.lanes import task_queue
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

MESSAGES = 20_000
PRIORITIES = 5
ASLEEP_A_SECOND = 60.0
"""As few as that are started and asleep in time, whatever the machine does."""

STEADY = 3000
STEADY_SECONDS = 20.0
"""The steady load: messages that fall due one by one over these seconds, more than a lane can do."""

QUIET_AFTER = 5.0
DRAIN_MAX_SECONDS = 900.0


async def main(arguments: list[str]) -> None:
    """Measure the lane's rate with messages that fall due one by one, then the herd; an argument changes its count."""
    count = read_count(arguments, MESSAGES)
    async with fresh_server() as server:
        prefix = new_prefix()
        async with noting(server, prefix) as ledger:
            steady = await _drain(server, prefix, ledger, STEADY, STEADY_SECONDS)
            begun_before = len(ledger.entries)
            due = await _let_sleep(server, prefix, count, 0.0)
            await _wait_for(ledger, STEADY + count + 1, due)
            entries = ledger.entries[begun_before:]

    row = {"messages": count, "steady/s": steady} | _check(entries, due, steady)
    report("herd", [row], note=f"{count:,} due in one instant, a workflow each, five priorities; one worker process")


async def _drain(server: EmbeddedServer, prefix: str, ledger: Ledger, count: int, over: float) -> float:
    """Give how many messages a second run when more fall due, over a stretch, than the lane can do."""
    due = await _let_sleep(server, prefix, count, over)
    await _wait_for(ledger, count + 1, due)
    return _rate(ledger.entries)


async def _let_sleep(server: EmbeddedServer, prefix: str, count: int, over: float) -> float:
    """Start one-shot messages, each of which is asleep before the first is due; gives when that is."""
    due = datetime.now(UTC) + timedelta(seconds=count / ASLEEP_A_SECOND + 10)
    quiet = Envelope(
        kind=HERDED,
        id=f"{count}-quiet",
        lane="short",
        tenant="quiet",
        payload={},
        scheduled_at=due + timedelta(seconds=QUIET_AFTER),
    )
    await _start(server, prefix, [*_make_herd(count, due, over), quiet])

    capacity = Capacity(await server.connect(), task_queue(prefix, "short"))
    while await capacity.read_backlog():  # noqa: ASYNC110 — another process works it off
        await asyncio.sleep(1)

    assert datetime.now(UTC) < due - timedelta(seconds=2), "the herd was not asleep in time; give a smaller count"
    return due.timestamp()


async def _wait_for(ledger: Ledger, count: int, due: float) -> None:
    async with asyncio.timeout(due - time.time() + DRAIN_MAX_SECONDS):
        while sum(entry.what == "done" for entry in ledger.entries) < count:  # noqa: ASYNC110 — another process keeps it
            await asyncio.sleep(5)


def _make_herd(count: int, due: datetime, over: float) -> Iterable[Envelope]:
    """Make messages due at one moment, or one by one over some seconds."""
    for number in range(count):
        tenant = "noisy" if number % 2 else f"tenant-{number % 100}"
        yield Envelope(
            kind=HERDED,
            id=f"{number % PRIORITIES + 1}-{count}-{number}",
            lane="short",
            priority=number % PRIORITIES + 1,
            tenant=tenant,
            payload={},
            scheduled_at=due + timedelta(seconds=over * number / count),
        )


def _check(entries: list[Entry], due: float, steady: float) -> dict[str, Any]:
    expected = {entry.id: due + (QUIET_AFTER if entry.id.endswith("quiet") else 0.0) for entry in entries}
    judged = audit(entries, expected=expected, now=time.time(), grace=0)
    rate = _rate(entries)
    begun = [entry.id for entry in entries if entry.what == "began"]
    firsts = [place for place, name in enumerate(begun) if name.startswith("1-")]
    nearly_all = firsts[int(len(firsts) * 0.99)]
    lateness = next(entry.at - entry.due_at for entry in entries if entry.id.endswith("quiet"))

    return {
        "drained/s": rate,
        "ratio": rate / steady,
        "early": judged.early,
        "not run": judged.messages - judged.cycles,
        "twice": judged.duplicated,
        "of 5 before 99 % of 1": sum(name.startswith("5-") for name in begun[:nearly_all]),
        "of 5 before all of 1": sum(name.startswith("5-") for name in begun[: firsts[-1]]),
        "quiet tenant late by s": lateness,
        "drained after s": max(entry.at for entry in entries) - due,
    }


def _rate(entries: list[Entry]) -> float:
    done = sorted(entry.at for entry in entries if entry.what == "done")
    drained = done[int(len(done) * 0.05) : int(len(done) * 0.95)]  # without its beginning and its end
    return len(drained) / (drained[-1] - drained[0])


async def _start(server: EmbeddedServer, prefix: str, envelopes: Iterable[Envelope]) -> None:
    starter = BulkStarter(await server.connect(), Settings(task_queue_prefix=prefix))
    rest = iter(envelopes)
    while group := list(islice(rest, 1000)):
        async for receipt in starter.start_all((None, envelope) for envelope in group):
            assert receipt.outcome is StartOutcome.STARTED, receipt
