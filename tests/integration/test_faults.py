"""Faults: worker and server are killed with SIGKILL in the middle of things, and nothing is lost."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from examples.ledger import Ledger, audit
from shared.errors import MessageNotFound, RetryLater
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.control import Control
from starter.local.embedded import EmbeddedOptions, EmbeddedServer
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.support.processes import kill_and_restart, worker_process
from tests.support.subjects import declare

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

MESSAGES = 60
CYCLES = 6


@pytest.fixture
async def killable(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server of the test's own, because it will be killed."""
    options = EmbeddedOptions(data=tmp_path / "server", port=find_free_port(), ui_port=None, slim=False)
    options.data.mkdir()
    server = EmbeddedServer(options)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def starter(killable: EmbeddedServer, settings: Settings, encoding: str) -> BulkStarter:
    """What starts messages there, each in a workflow of its own or all in two packs."""
    return BulkStarter(await killable.connect(), settings, encodings=declare(encoding, "ledger"))


async def load(starter: BulkStarter, names: list[str], lane: str, **payload: float) -> None:
    """Start one message a name."""
    payload = {"delay": 1, "cycles": CYCLES, **payload}
    envelopes = [Envelope(kind="ledger", id=name, lane=lane, payload=payload) for name in names]
    async for receipt in starter.start_all((None, e) for e in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt


def decided(ledger: Ledger) -> int:
    """Count the cycles that handlers finished."""
    return sum(entry.what in ("again", "done") for entry in ledger.entries)


def assert_kept(ledger: Ledger, names: list[str]) -> None:
    """None lost, none early, no version skipped, every message done at its last version."""
    proof = audit(ledger.entries, expected=dict.fromkeys(names, 0.0), now=time.time(), grace=0)

    assert (proof.lost, proof.early, proof.gaps) == (0, 0, 0)
    assert {e.id for e in ledger.entries if e.what == "done" and e.version == CYCLES - 1} == set(names)


@pytest.mark.parametrize("lane", ["short", pytest.param("medium", marks=pytest.mark.long)])
async def test_a_worker_killed_in_mid_handler_loses_nothing(
    killable: EmbeddedServer, starter: BulkStarter, settings: Settings, ledger: Ledger, lane: str
) -> None:
    """What the killed worker was at is run again by the next one, whose handler sees that it is another attempt.

    Versions go on without gap.
    """
    names = [f"w{n}" for n in range(10)]
    await load(starter, names, lane, work=0.3)
    async with worker_process(killable, settings) as worker:
        await wait_until(lambda: decided(ledger) > 15, "handlers are at work")
        interrupted = await wait_until(lambda: _stop_at_work(worker, ledger), "handlers are at work when it stops")
        worker.kill()
    async with worker_process(killable, settings):
        await wait_until(lambda: _is_done(ledger, names), "all messages are done", seconds=50)

    assert_kept(ledger, names)
    attempts = {e.attempt for e in ledger.entries if (e.id, e.version) in interrupted}
    assert attempts == {1, 2}


@pytest.mark.long
async def test_worker_and_server_killed_while_signals_arrive_lose_nothing(
    killable: EmbeddedServer, starter: BulkStarter, settings: Settings, ledger: Ledger
) -> None:
    """Server killed, worker killed, server killed again, under a rain of signals that senders retry: all is kept."""
    names = [f"s{n}" for n in range(MESSAGES)]
    await load(starter, names, "short")
    raining = asyncio.create_task(_rain(killable, settings, names, ledger))
    async with worker_process(killable, settings) as worker:
        await wait_until(lambda: decided(ledger) > MESSAGES, "the first cycles are decided")
        await kill_and_restart(killable)
        before = decided(ledger)
        await wait_until(lambda: decided(ledger) > before + 20, "cycles go on after the server came back")
        worker.kill()
    async with worker_process(killable, settings):
        await kill_and_restart(killable)
        await wait_until(lambda: _is_done(ledger, names), "all messages are done", seconds=50)
        accepted = await raining

    proof = audit(ledger.entries, expected=dict.fromkeys(names, 0.0), now=time.time(), grace=0)
    assert (proof.lost, proof.gaps) == (0, 0)
    assert accepted >= 5, "it rained: a signal to a pack waits for its receipt, so there are few"


async def _rain(server: EmbeddedServer, settings: Settings, names: list[str], ledger: Ledger) -> int:
    """Send signals, retrying those that the absent server did not take, until every message is done."""
    control = Control(await server.connect(), settings)
    accepted = 0

    while not _is_done(ledger, names):
        for name in names[::7]:
            try:
                await control.run_now("ledger", name, "rain")
                accepted += 1
            except (RetryLater, MessageNotFound):
                await asyncio.sleep(0.2)
        await asyncio.sleep(0.3)

    return accepted


def _stop_at_work(worker: asyncio.subprocess.Process, ledger: Ledger) -> set[tuple[str, int]]:
    """Stop a worker and give what it is at; let it go on when that is nothing."""
    worker.send_signal(signal.SIGSTOP)
    if not (found := _at_work(ledger)):
        worker.send_signal(signal.SIGCONT)
    return found


def _at_work(ledger: Ledger) -> set[tuple[str, int]]:
    began = {(e.id, e.version) for e in ledger.entries if e.what == "began"}
    return began - {(e.id, e.version) for e in ledger.entries if e.what != "began"}


def _is_done(ledger: Ledger, names: list[str]) -> bool:
    return {e.id for e in ledger.entries if e.what == "done"} >= set(names)
