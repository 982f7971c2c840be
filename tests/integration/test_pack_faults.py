"""Packs through kills: twenty thousand messages, three workers and one server lost in the middle of batches."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from examples.ledger import LEDGER_VARIABLE, Entry, Ledger, audit
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.support.ledger_tail import Tail
from tests.support.processes import kill_and_restart, worker_process

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(120)]

MESSAGES = 20_000
PACKS = 100
WAVES = 3
WAVE_SECONDS = 8.0
"""A wave of messages for every worker that is killed, so that each loses batches that nobody had begun before."""
AGAIN_EVERY = 4
"""One message in this number comes back for a second version."""
MAX_SECONDS = 350.0
UNSAVED_SECONDS = 5.0
"""A batch answers within two seconds of its first outcome; what was finished longer before a kill than this is safe."""


@dataclass(frozen=True, slots=True)
class Ordeal:
    """What happened: every call, and when workers were killed."""

    expected: dict[str, float]
    entries: list[Entry]
    kills: list[float]

    def calls_twice(self) -> dict[tuple[str, int], list[Entry]]:
        """Give the calls of each version that was begun more than once."""
        calls: dict[tuple[str, int], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.what == "began":
                calls[entry.id, entry.version].append(entry)
        return {key: began for key, began in calls.items() if len(began) > 1}


@pytest.fixture(scope="module")
async def ordeal(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ordeal]:
    """Three workers are killed in the middle of a wave each, then the server under the fourth; until all is done."""
    folder = tmp_path_factory.mktemp("ordeal")
    settings = Settings(task_queue_prefix="ordeal", workflow_task_timeout=timedelta(seconds=5))
    options = EmbeddedOptions(data=folder, port=find_free_port(), ui_port=None)
    ledger = Ledger(folder / "ledger.jsonl")
    kills = list[float]()

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(LEDGER_VARIABLE, str(folder / "ledger.jsonl"))
        async with asyncio.timeout(MAX_SECONDS), run_embedded(options) as server:
            expected = await _load(server, settings)
            decided = Tail(ledger, "again", "done")
            done = Tail(ledger, "done")

            for wave in range(WAVES):
                async with worker_process(server, settings) as worker:
                    enough = (wave + 0.3) * MESSAGES / WAVES
                    await wait_until(lambda enough=enough: decided.count() > enough, f"wave {wave}", seconds=100)
                    worker.kill()
                    kills.append(time.time())

            async with worker_process(server, settings):
                before = decided.count()
                await wait_until(lambda: decided.count() > before + 100, "the fourth worker works", seconds=100)
                await kill_and_restart(server)
                await wait_until(lambda: done.count() >= MESSAGES, "all are done", seconds=120)

        yield Ordeal(expected, ledger.entries, kills)


async def _load(server: EmbeddedServer, settings: Settings) -> dict[str, float]:
    """Start them in waves; gives when each is due first."""
    pack = Pack(packs=PACKS, coalesce=timedelta(0))
    starter = BulkStarter(await server.connect(), settings, encodings={"ledger": pack})
    now = time.time()

    envelopes = [
        Envelope(
            kind="ledger",
            id=f"o{n}",
            lane="medium",
            scheduled_at=datetime.fromtimestamp(now + WAVE_SECONDS * (n % WAVES), UTC),
            payload={"delay": 1, "work": 0.2, "cycles": 1 + (n % AGAIN_EVERY == 0)},
        )
        for n in range(MESSAGES)
    ]
    async for receipt in starter.start_all((None, e) for e in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt

    return {e.id: e.scheduled_at.timestamp() for e in envelopes if e.scheduled_at}


async def test_twenty_thousand_messages_survive_the_kills(ordeal: Ordeal) -> None:
    """None lost, none early, no version skipped: all of them done at their last version."""
    proof = audit(ordeal.entries, expected=ordeal.expected, now=time.time(), grace=0)
    last = {e.id: e.version for e in ordeal.entries if e.what == "done"}

    assert (proof.messages, proof.lost, proof.early, proof.gaps) == (MESSAGES, 0, 0, 0)
    assert last == {f"o{n}": int(n % AGAIN_EVERY == 0) for n in range(MESSAGES)}


async def test_only_what_a_batch_had_not_finished_runs_again(ordeal: Ordeal) -> None:
    """What a handler had decided well before its worker died is not repeated, though others of its batch are."""
    twice = ordeal.calls_twice()
    ended = {(e.id, e.version, e.attempt): e.at for e in ordeal.entries if e.what != "began"}
    for (name, version), (first, *_) in twice.items():
        finished_at = ended.get((name, version, first.attempt))
        kill = next(at for at in ordeal.kills if at > first.at)
        assert finished_at is None or kill - finished_at < UNSAVED_SECONDS, (name, version)

    assert len(ordeal.kills) == WAVES
    assert 0 < len(twice) < MESSAGES / 2


async def test_what_runs_again_is_told_that_it_is_another_attempt(ordeal: Ordeal) -> None:
    """A handler whose call repeats one that a lost worker may have made sees `ctx.attempt` above 1."""
    attempts = [[call.attempt for call in calls] for calls in ordeal.calls_twice().values()]

    assert attempts
    assert all(numbers == sorted(set(numbers)) for numbers in attempts)
