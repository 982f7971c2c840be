"""The promises, proven by a ledger that the handlers keep: none lost, none early, none twice, no version skipped."""

import random
import time
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from activities import handler
from examples.ledger import Entry, Ledger, audit
from shared.encoding import Pack
from shared.envelope import Envelope
from shared.settings import Settings
from starter.bulk import BulkStarter
from starter.receipts import StartOutcome
from tests.conftest import Serve, wait_until
from tests.handlers import work
from tests.ledger_tail import Tail
from tests.subjects import declare

MESSAGES = {"solo": 1000, "pack": 3000}
PACK = Pack(packs=6, coalesce=timedelta(seconds=0.5))
MAX_CYCLES = 3
LANES = ("short", "medium", "long")


@pytest.fixture
def starter(client: Client, settings: Settings, kind: str, encoding: str) -> BulkStarter:
    """What starts them all."""
    return BulkStarter(client, settings, encodings=declare(encoding, kind, PACK))


async def test_messages_with_mixed_delays_keep_every_promise(
    starter: BulkStarter, serve: Serve, ledger: Ledger, kind: str, encoding: str
) -> None:
    """Versions 0, 1, 2 without gap for each, none before its due time, none twice alive, over all three lanes."""
    chance, now = random.Random(7), time.time()
    envelopes = [_envelope(kind, chance, now, f"m{n}") for n in range(MESSAGES[encoding])]
    expected = {e.id: e.scheduled_at.timestamp() if e.scheduled_at else 0.0 for e in envelopes}
    async with serve(handler(kind)(work.function), sandbox=False):  # sandboxed they would outlast the test's minute
        outcomes = [r.outcome async for r in starter.start_all((None, e) for e in [*envelopes, *envelopes[:100]])]

        assert outcomes.count(StartOutcome.STARTED) == len(envelopes)
        assert outcomes.count(StartOutcome.ALREADY_RUNNING) == 100

        done = Tail(ledger, "done")
        await wait_until(lambda: done.count() >= len(envelopes), "all messages are done", seconds=50)
    proof = audit(ledger.entries, expected=expected, now=time.time(), grace=0)

    assert (proof.early, proof.lost, proof.duplicated, proof.gaps) == (0, 0, 0, 0)
    assert proof.cycles == sum(e.payload["cycles"] for e in envelopes)


def _envelope(kind: str, chance: random.Random, now: float, name: str) -> Envelope:
    is_scheduled, cycles = chance.random() < 0.3, chance.choices([1, 2, MAX_CYCLES], weights=[6, 3, 1])[0]
    return Envelope(
        kind=kind,
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
