"""Standing still: whatever is killed, all that is due runs again soon, and no queue of the server grows long."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from examples.ledger import Ledger
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.integration.test_left_runs import TASKS_MOST, count_tasks
from tests.processes import kill, worker_process

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(300)]

SOLO, MEDIUM, PACKED, PACKS = 200, 40, 2_000, 8
DELAY_SECONDS = 8
BUSY_SECONDS = 40.0
"""So long packs work after the first kills: more than a server takes by default to save what is acknowledged."""

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


async def test_all_killed_over_and_over_leaves_nothing_that_stands_still(
    own_server: EmbeddedServer, settings: Settings, ledger: Ledger
) -> None:
    """Three kills of server and worker under lone messages, busy packs, one more kill, and three within a minute."""

    async def live(seconds: float) -> None:
        """Serve for this time, then kill worker and server at once."""
        async with worker_process(own_server, settings) as worker:
            await asyncio.sleep(seconds)  # how long they work is the very point
            worker.kill()
            await kill(own_server)
        await own_server.start()

    await start_all(own_server, settings, ledger=(SOLO, "short"))
    for _ in range(3):
        await live(8)
    await start_all(own_server, settings, ledger=(MEDIUM, "medium"), ledger_packed=(PACKED, "short"))
    for seconds in (BUSY_SECONDS, 8, 8, 8):
        await live(seconds)
    async with worker_process(own_server, settings):
        resumed_at = time.time()

        def still() -> set[str]:
            entries = ledger.entries
            return {entry.id for entry in entries} - {entry.id for entry in entries if entry.at > resumed_at}

        await wait_until(lambda: not still(), "nothing stands still", seconds=DELAY_SECONDS + STILL_SECONDS)
        assert len({entry.id for entry in ledger.entries}) == SOLO + MEDIUM + PACKED
        await wait_until(lambda: count_tasks(own_server) < TASKS_MOST, "the transfer queue is short")
