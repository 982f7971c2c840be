"""The promises, proven by a ledger that the handlers keep: none lost, none early, none twice, no version skipped."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client

from activities import handler
from examples.ledger import LEDGER_VARIABLE, Entry, Ledger, audit
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import serving, wait_until
from tests.support.handlers import work
from tests.support.ledger_tail import Tail
from tests.support.subjects import ENCODINGS, declare

pytestmark = pytest.mark.xdist_group("promises")  # what they share is made once

FEW = {"solo": 200, "pack": 600}
MANY = {"solo": 500, "pack": 3000}
PACK = Pack(packs=6, coalesce=timedelta(seconds=0.5))
MAX_CYCLES = 3
STARTED_TWICE = 50
MAX_SECONDS = 300.0
LANES = ("short", "medium", "long")


@dataclass(frozen=True, slots=True)
class Lives:
    """What became of all the messages."""

    envelopes: list[Envelope]
    outcomes: Counter[StartOutcome]
    entries: list[Entry]


@pytest.fixture(scope="module", params=ENCODINGS)
def encoding(request: pytest.FixtureRequest) -> str:
    """How messages become workflows."""
    return request.param


@pytest.fixture(
    scope="module", params=[FEW, pytest.param(MANY, marks=(pytest.mark.fault, pytest.mark.long))], ids=["few", "many"]
)
async def lives(
    request: pytest.FixtureRequest, client: Client, encoding: str, tmp_path_factory: pytest.TempPathFactory
) -> Lives:
    """Messages of one kind live from their start to their end, over all three lanes; some are started twice."""
    count = request.param[encoding]
    chance = random.Random(7)
    now = time.time()
    kind = f"promises-{encoding}-{count}"
    path = tmp_path_factory.mktemp("promises") / "ledger.jsonl"
    settings = Settings(task_queue_prefix=kind)
    ledger = Ledger(path)
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind, PACK))
    envelopes = [_envelope(kind, chance, now, f"m{n}") for n in range(count)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(LEDGER_VARIABLE, str(path))
        async with asyncio.timeout(MAX_SECONDS), serving(client, settings, handler(kind)(work.function)):
            requests = [(None, e) for e in [*envelopes, *envelopes[:STARTED_TWICE]]]
            outcomes = Counter([receipt.outcome async for receipt in starter.start_all(requests)])
            done = Tail(ledger, "done")
            await wait_until(lambda: done.count() >= len(envelopes), "all messages are done", seconds=MAX_SECONDS - 20)

    return Lives(envelopes, outcomes, ledger.entries)


async def test_messages_with_mixed_delays_keep_every_promise(lives: Lives) -> None:
    """Versions 0, 1, 2 without gap for each, none before its due time, none twice alive, over all three lanes."""
    expected = {e.id: e.scheduled_at.timestamp() if e.scheduled_at else 0.0 for e in lives.envelopes}
    proof = audit(lives.entries, expected=expected, now=time.time(), grace=0)

    assert (proof.early, proof.lost, proof.duplicated, proof.gaps) == (0, 0, 0, 0)
    assert proof.cycles == sum(e.payload["cycles"] for e in lives.envelopes)


async def test_none_is_started_twice(lives: Lives) -> None:
    """Those that come a second time are counted apart."""
    assert lives.outcomes == {
        StartOutcome.STARTED: len(lives.envelopes),
        StartOutcome.ALREADY_RUNNING: STARTED_TWICE,
    }


def _envelope(kind: str, chance: random.Random, now: float, name: str) -> Envelope:
    is_scheduled = chance.random() < 0.3
    cycles = chance.choices([1, 2, MAX_CYCLES], weights=[6, 3, 1])[0]
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
