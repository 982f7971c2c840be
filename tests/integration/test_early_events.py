"""Early events: what happens to a workflow while somebody asks it is applied at the time of its own task."""

import asyncio
import contextlib
import random
import uuid
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from shared.messages.json_value import decode_json
from worker.lanes.early_events import TimelyRunner

CLOCKS = 12
CACHED = 8
SLOTS = 4
SIGNALLERS = 6
SIGNALS = 100
ASKERS = 8

Clock = WorkflowHandle["Clocked", None]


@workflow.defn(name="clocked")
class Clocked:
    """Writes down when each signal was applied."""

    def __init__(self) -> None:
        self._count = 0

    @workflow.run
    async def run(self) -> None:
        """Wait for ever."""
        await workflow.wait_condition(lambda: False)

    @workflow.signal
    def note(self) -> None:
        """Write down the time."""
        self._count += 1
        workflow.upsert_memo({"moment": workflow.time()})

    @workflow.query
    def count(self) -> int:
        """Tell how many signals there were."""
        return self._count


@pytest.mark.long
@pytest.mark.timeout(90)
async def test_a_signal_that_meets_a_query_is_applied_at_the_time_of_its_task(client: Client) -> None:
    """A worker that reads a history for a query finds signals there whose task nobody has begun."""
    queue = f"early-{uuid.uuid4().hex[:8]}"
    runner = TimelyRunner(UnsandboxedWorkflowRunner())
    is_over = asyncio.Event()

    worker = Worker(
        client,
        task_queue=queue,
        workflows=[Clocked],
        workflow_runner=runner,
        max_cached_workflows=CACHED,
        max_concurrent_workflow_tasks=SLOTS,
    )

    async with runner.attach(worker):
        clocks: list[Clock] = [
            await client.start_workflow(
                "clocked", id=f"{queue}-{n}", task_queue=queue, task_timeout=timedelta(seconds=10)
            )
            for n in range(CLOCKS)
        ]

        async def send() -> None:
            for _ in range(SIGNALS):
                await random.choice(clocks).signal("note")
                await asyncio.sleep(random.uniform(0, 0.05))

        asking = [asyncio.create_task(ask(clocks, is_over)) for _ in range(ASKERS)]
        await asyncio.gather(*(send() for _ in range(SIGNALLERS)))
        is_over.set()
        await asyncio.gather(*asking)
        counted = [await clock.query("count") for clock in clocks]

    assert sum(counted) == SIGNALLERS * SIGNALS
    assert [flaw for clock in clocks for flaw in find_flaws(await clock.fetch_history())] == []


async def ask(clocks: list[Clock], is_over: asyncio.Event) -> None:
    """Query one after the other."""
    while not is_over.is_set():
        with contextlib.suppress(RPCError):  # of several queries of a busy workflow the server keeps one
            await random.choice(clocks).query("count")


def find_flaws(history: WorkflowHistory) -> list[str]:
    """Give the tasks that have failed, and those that wrote down another time than the one at which they began."""
    begun: dict[int, float] = {}
    flaws: list[str] = []

    for event in history.events:
        if event.HasField("workflow_task_failed_event_attributes"):
            flaws.append(event.workflow_task_failed_event_attributes.failure.message)
        elif event.HasField("workflow_task_started_event_attributes"):
            begun[event.event_id + 1] = event.event_time.ToNanoseconds() / 1e9
        elif event.HasField("workflow_properties_modified_event_attributes"):
            written = event.workflow_properties_modified_event_attributes
            moment: float = decode_json(written.upserted_memo.fields["moment"].data)
            at = begun[written.workflow_task_completed_event_id]
            if moment != at:
                flaws.append(f"event {event.event_id} says {moment}, its task began at {at}")

    return flaws
