"""Lost deliveries: a server that halts for a moment loses some, counts each, and gives the task again soon."""

import asyncio
import logging
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.client import Client

from examples.ledger import Entry, Ledger
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.insight.doctor.deliveries import fetch_deliveries
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from tests.conftest import wait_until
from tests.support.processes import worker_process

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long]

MESSAGES = 60
DELAY_SECONDS = 2
STOP_SECONDS = 1.3  # a little more than the second in which a task must be recorded as begun
BACK_SECONDS = 20.0
"""How long after it was due a message may run, beside the stops themselves."""


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server of the test's own, because it will be stopped."""
    async with run_embedded(EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)) as server:
        yield server


@pytest.mark.parametrize("stops", [pytest.param(500, marks=pytest.mark.timeout(3000))])
async def test_what_the_server_lost_is_counted_and_back_soon(
    own_server: EmbeddedServer, settings: Settings, ledger: Ledger, stops: int
) -> None:
    """Stopped for 1.3 s over and over: each task that nobody got is in the server's metrics, none is long away."""
    client = await own_server.connect()
    starter = BulkStarter(client, settings)
    soon = datetime.now(UTC) + timedelta(seconds=5)
    envelopes = (
        Envelope(kind="ledger", id=f"m{n}", lane="short", scheduled_at=soon, payload={"delay": DELAY_SECONDS})
        for n in range(MESSAGES)
    )
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        assert receipt.outcome is StartOutcome.STARTED, receipt

    stopped: list[tuple[float, float]] = []
    async with worker_process(own_server, settings):
        await wait_until(lambda: len({entry.id for entry in ledger.entries}) == MESSAGES, "all have run")
        program = _find_program(own_server)
        for _ in range(stops):
            began_at = time.time()
            program.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(STOP_SECONDS)
            finally:
                program.send_signal(signal.SIGCONT)
            stopped.append((began_at, time.time()))
            await asyncio.sleep(random.uniform(1, 3))
        await asyncio.sleep(BACK_SECONDS)
        found = await fetch_deliveries(own_server.metrics_url)
        timeouts = await _count_timeouts(client)

    late = _find_late(ledger.entries, stopped)
    logger.info("%s stops: %s, %s tasks timed out, latest %.1f s", stops, found, timeouts, max(late.values()))
    assert found.given_up + found.lost >= timeouts
    assert found.given_up > 0
    assert {name: seconds for name, seconds in late.items() if seconds > BACK_SECONDS} == {}


def _find_program(server: EmbeddedServer) -> psutil.Process:
    """Find the server itself, below the process that watches over it."""
    return psutil.Process(server.process_id).children(recursive=True)[-1]


async def _count_timeouts(client: Client) -> int:
    """Count the workflow tasks that a worker was said to have begun, and that nobody ended."""
    counts = Counter[bool]()
    async for found in client.list_workflows("WorkflowType = 'message'"):
        async for event in client.get_workflow_handle(found.id, run_id=found.run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
                kind = event.workflow_task_timed_out_event_attributes.timeout_type
                counts[kind == TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE] += 1
    return counts[True]


def _find_late(entries: list[Entry], stopped: list[tuple[float, float]]) -> dict[str, float]:
    """Give by how many seconds each message was late at most, without the time in which the server was stopped."""
    late: defaultdict[str, float] = defaultdict(float)
    for entry in entries:
        if entry.what == "began":
            away = sum(max(0.0, min(end, entry.at) - max(begin, entry.due_at)) for begin, end in stopped)
            late[entry.id] = max(late[entry.id], entry.at - entry.due_at - away)
    return late
