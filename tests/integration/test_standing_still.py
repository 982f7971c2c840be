"""Standing still: whatever is killed, all that is due runs again soon, and no queue of the server grows long."""

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from examples.ledger import Ledger
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.integration.test_left_runs import TASKS_MAX, count_tasks
from tests.support.processes import kill, worker_process

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(300)]

SOLO = 200
MEDIUM = 40
PACKED = 2_000
PACKS = 8
DELAY_SECONDS = 8
BUSY_SECONDS = 40.0
"""So long packs work after the first kills: more than a server takes by default to save what is acknowledged."""

CALM_SECONDS = 240.0
LOOPS = 4

STILL_SECONDS = 120.0
"""No due message may wait longer than this once the faults are over: twice what is promised, for a slow machine."""


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server of the test's own, because it will be killed."""
    async with run_embedded(EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)) as server:
        yield server


async def start_all(server: EmbeddedServer, settings: Settings, **kinds: tuple[int, str]) -> None:
    """Start messages of each kind: a number of them, on a lane."""
    pack = Pack(packs=PACKS, coalesce=timedelta(0))
    starter = BulkStarter(await server.connect(), settings, encodings={"ledger-packed": pack})
    envelopes = (
        Envelope(kind=kind.replace("_", "-"), id=f"{lane}-{kind}-{n}", lane=lane, payload={"delay": DELAY_SECONDS})
        for kind, (count, lane) in kinds.items()
        for n in range(count)
    )
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt


async def live(server: EmbeddedServer, settings: Settings, seconds: float) -> None:
    """Serve for this time, then kill worker and server at once, and start the server again."""
    async with worker_process(server, settings) as worker:
        await asyncio.sleep(seconds)  # how long they work is the very point
        worker.kill()
        await kill(server)
    await server.start()


async def wait_until_none_is_still(ledger: Ledger) -> None:
    """Wait until each message has run again from now on."""
    known, position = ledger.read()
    still = {entry.id for entry in known}

    def is_none_still() -> bool:
        nonlocal position
        entries, position = ledger.read(position)
        still.difference_update(entry.id for entry in entries)
        return not still

    await wait_until(is_none_still, "nothing stands still", seconds=DELAY_SECONDS + STILL_SECONDS)


@pytest.fixture
async def _busy_loops() -> AsyncIterator[None]:
    """Four programs that use all the processor time that they get, on a machine of two cores."""
    loops = [await start_supervised([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        await asyncio.gather(*map(kill_supervised, loops))


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_busy_loops")
async def test_nothing_stands_still_beside_busy_loops(
    own_server: EmbeddedServer, settings: Settings, ledger: Ledger
) -> None:
    """Three kills of server and worker, four minutes of work, three kills, on a machine that is busy with others."""
    await start_all(own_server, settings, ledger=(600, "short"), ledger_packed=(6_300, "short"))
    await start_all(own_server, settings, ledger=(100, "medium"))
    for seconds in (8, 8, 8, CALM_SECONDS, 8, 8):
        await live(own_server, settings, seconds)
    async with worker_process(own_server, settings):
        await wait_until_none_is_still(ledger)
    assert len({entry.id for entry in ledger.entries}) == 7_000


async def test_all_killed_over_and_over_leaves_nothing_that_stands_still(
    own_server: EmbeddedServer, settings: Settings, ledger: Ledger
) -> None:
    """Three kills of server and worker under lone messages, busy packs, one more kill, and three within a minute."""
    await start_all(own_server, settings, ledger=(SOLO, "short"))
    for _ in range(3):
        await live(own_server, settings, 8)
    await start_all(own_server, settings, ledger=(MEDIUM, "medium"), ledger_packed=(PACKED, "short"))
    for seconds in (BUSY_SECONDS, 8, 8, 8):
        await live(own_server, settings, seconds)
    async with worker_process(own_server, settings):
        await wait_until_none_is_still(ledger)
        assert len({entry.id for entry in ledger.entries}) == SOLO + MEDIUM + PACKED
        await wait_until(lambda: count_tasks(own_server) < TASKS_MAX, "the transfer queue is short")
