"""A herd after an outage: thousands fall due at one instant while the server is away; all run once it is back."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from examples.ledger import LEDGER_VARIABLE, Audit, Entry, Ledger, audit
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, EmbeddedServer
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.support.handlers import HERD_PACK
from tests.support.ledger_tail import Tail
from tests.support.processes import kill, worker_process

pytestmark = [pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(60)]

SOLO = 1000
PACKED = 1000
PERIODIC = 50
PERIOD = 5.0
LEAD = timedelta(seconds=45)
"""From the first start to the instant at which all are due."""

AWAY_BEFORE = 10.0
AWAY_AFTER = 50.0
TASK_TIMEOUT = timedelta(seconds=20)
"""After this time what the kill cut off is done again; what is only slow on a slow machine must not be."""

MAX_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Herd:
    """What became of it."""

    due_at: float
    back_at: float
    """When the server began to come back."""
    entries: list[Entry]

    def entries_of(self, *names: str) -> list[Entry]:
        """Give what was noted of messages whose ids begin so."""
        return [entry for entry in self.entries if entry.id.startswith(names)]

    def audit(self, *names: str) -> Audit:
        """Judge those messages; `lost` counts those that never began."""
        entries = self.entries_of(*names)
        expected = {entry.id: self.due_at for entry in entries}
        return audit(entries, expected=expected, now=time.time(), grace=3600)


@pytest.fixture(scope="module")
async def herd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Herd]:
    """Let the server be away for a minute, around the instant at which the herd is due."""
    options = EmbeddedOptions(data=tmp_path_factory.mktemp("herd"), port=find_free_port(), ui_port=None)
    server = EmbeddedServer(options)
    ledger = Ledger(options.data / "ledger.jsonl")
    settings = Settings(task_queue_prefix="herd", workflow_task_timeout=TASK_TIMEOUT)
    await server.start()

    due = datetime.now(UTC) + LEAD
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv(LEDGER_VARIABLE, str(options.data / "ledger.jsonl"))
            async with asyncio.timeout(MAX_SECONDS), worker_process(server, settings):
                starter = BulkStarter(await server.connect(), settings, encodings={"ledger-packed": HERD_PACK})
                requests = ((None, envelope) for envelope in make_herd(due))
                assert {r.outcome async for r in starter.start_all(requests)} == {StartOutcome.STARTED}
                await asyncio.sleep(due.timestamp() - AWAY_BEFORE - time.time())
                await kill(server)
                await asyncio.sleep(due.timestamp() + AWAY_AFTER - time.time())  # the fault itself
                back_at = time.time()
                await server.start()
                done = Tail(ledger, "done")
                await wait_until(lambda: done.count() >= SOLO + PACKED, "all are done", seconds=120)
                await wait_until(lambda: count_returned(ledger, back_at) == PERIODIC, "all come back", seconds=60)

        yield Herd(due.timestamp(), back_at, ledger.entries)
    finally:
        await server.stop()


def count_returned(ledger: Ledger, since: float) -> int:
    """Count the messages that come back every few seconds and have done so twice since then."""
    calls = [(e.id, e.version) for e in ledger.entries if e.id.startswith("periodic") and e.at > since]
    return sum(len(list(versions)) > 1 for _, versions in itertools.groupby(sorted(set(calls)), lambda call: call[0]))


def make_herd(due: datetime) -> list[Envelope]:
    """Make messages of five priorities that are due at one instant, and some that come back every few seconds."""
    now = {"kind": "ledger", "lane": "short", "payload": {"delay": PERIOD}}
    once = {"lane": "short", "payload": {"cycles": 1}, "scheduled_at": due}
    fields = [now | {"id": f"periodic-{n}"} for n in range(PERIODIC)]
    for kind, name, count in (("ledger", "solo", SOLO), ("ledger-packed", "packed", PACKED)):
        fields += [once | {"kind": kind, "id": f"{name}-{n % 5 + 1}-{n}", "priority": n % 5 + 1} for n in range(count)]
    return [Envelope.model_validate(each) for each in fields]


def test_each_runs_once_and_none_early(herd: Herd) -> None:
    """Whether with a workflow of its own or in a pack."""
    for name, count in (("solo", SOLO), ("packed", PACKED)):
        judged = herd.audit(name)

        assert (judged.messages, judged.cycles) == (count, count)
        assert (judged.early, judged.lost, judged.duplicated) == (0, 0, 0)


def test_missed_periods_are_made_up_by_one_run(herd: Herd) -> None:
    """Who comes back every five seconds runs once for the dozen times it could not, and five seconds later again.

    A call that the kill cut off is made again once the server is back; no other is.
    """
    calls: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for entry in herd.entries_of("periodic"):
        if entry.what == "began":
            calls[entry.id][entry.version].append(entry.at)
    for versions in calls.values():
        repeated = [moments for moments in versions.values() if len(moments) > 1]
        assert all(len(moments) == 2 and moments[0] < herd.back_at < moments[1] for moments in repeated)
        counted = [moments[-1] for moments in versions.values()]
        assert min(b - a for a, b in itertools.pairwise(counted)) >= PERIOD
        assert sum(moment > herd.due_at + AWAY_AFTER for moment in counted) > 1


def test_the_first_priority_is_nearly_done_before_the_last_begins(herd: Herd) -> None:
    """But for what was handed out before the queue was there, and what was in flight."""
    order = [entry.id for entry in herd.entries_of("solo-1", "solo-5") if entry.what == "began"]
    last_first = max(place for place, name in enumerate(order) if name.startswith("solo-1"))
    overtaken = sum(name.startswith("solo-5") for name in order[:last_first])

    assert overtaken < SOLO // 5 // 2
