"""The promises, proven by a ledger that the handlers keep: none lost, none early, none twice, no version skipped."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from examples.ledger import Entry, Ledger, audit
from shared.envelope import Envelope
from shared.settings import Settings
from starter.bulk import BulkStarter, StartOutcome
from tests.conftest import Serve, wait_until
from tests.handlers import work

MESSAGES = 1000
MAX_CYCLES = 3
LANES = ("short", "medium", "long")


async def test_a_thousand_messages_with_mixed_delays_keep_every_promise(
    client: Client, settings: Settings, serve: Serve, ledger: Ledger, message_id: Callable[[], str]
) -> None:
    """Versions 0, 1, 2 without gap for each, none before its due time, none twice alive, over all three lanes."""
    chance = random.Random(7)
    now = time.time()
    envelopes = [_envelope(chance, now, message_id()) for _ in range(MESSAGES)]
    expected = {e.id: e.scheduled_at.timestamp() if e.scheduled_at else 0.0 for e in envelopes}
    async with serve(work, sandbox=False):  # a thousand sandboxed ones would outlast the test's minute
        starter = BulkStarter(client, settings)
        outcomes = [r.outcome async for r in starter.start_all((None, e) for e in [*envelopes, *envelopes[:100]])]

        assert outcomes.count(StartOutcome.STARTED) == MESSAGES
        assert outcomes.count(StartOutcome.ALREADY_RUNNING) == 100

        await wait_until(
            lambda: sum(e.what == "done" for e in ledger.entries) >= MESSAGES, "all messages are done", seconds=50
        )
    proof = audit(ledger.entries, expected=expected, now=time.time(), grace=0)

    assert (proof.early, proof.lost, proof.duplicated, proof.gaps) == (0, 0, 0, 0)
    assert proof.cycles == sum(e.payload["cycles"] for e in envelopes)


def _envelope(chance: random.Random, now: float, name: str) -> Envelope:
    is_scheduled, cycles = chance.random() < 0.3, chance.choices([1, 2, MAX_CYCLES], weights=[6, 3, 1])[0]
    return Envelope(
        kind="ledger",
        id=name,
        lane=chance.choices(LANES, weights=[18, 1, 1])[0],
        scheduled_at=datetime.fromtimestamp(now + 10 * chance.random(), UTC) if is_scheduled else None,
        tolerance_seconds=chance.choice([0, 2]),
        priority=chance.randint(1, 5),
        payload={"delay": chance.choice([1, 1.5, 3]), "cycles": cycles, "tolerance": chance.choice([0, 1])},
    )


def test_the_audit_itself_finds_every_kind_of_broken_promise(ledger: Ledger) -> None:
    """A ledger with one early call, one lost message, one repeated version and one gap is not called clean."""

    def entry(what: str, name: str, version: int, at: float, asked: float | None = None) -> Entry:
        return Entry(what=what, id=name, version=version, attempt=1, at=at, due_at=at, lane="short", asked=asked)

    for line in (
        entry("began", "early", 0, 10),
        entry("again", "early", 0, 11, asked=5),
        entry("began", "early", 1, 15.9),
        entry("began", "twice", 0, 10),
        entry("again", "twice", 0, 11, asked=5),
        entry("began", "twice", 0, 17),
        entry("again", "twice", 0, 18, asked=1000),
        entry("began", "gap", 0, 10),
        entry("done", "gap", 2, 11),
        entry("began", "gone", 0, 10),
        entry("again", "gone", 0, 11, asked=5),
    ):
        ledger.append(line)
    names = ["early", "twice", "gap", "gone", "never"]
    proof = audit(
        ledger.entries, expected=dict.fromkeys(names, 0.0), now=100, grace=timedelta(seconds=10).total_seconds()
    )

    assert (proof.early, proof.duplicated, proof.gaps, proof.lost) == (1, 1, 1, 2)
