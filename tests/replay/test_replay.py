"""Every run replays its own history: what a worker does again, without what it had in memory, is what was done."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from examples.ledger import Ledger
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.messages.placement import pack_workflow_id
from shared.settings import Settings
from shared.temporal.converter import DATA_CONVERTER
from starter.local.embedded import EmbeddedServer
from starter.starting.bulk import BulkStarter
from starter.steering.stored.stored_pack import StoredPack, read_run
from tests.conftest import wait_until
from tests.replay.runs import count_types, wait_at_rest
from tests.replay.scenarios import LIVES, PACK_LIVES, live, serve_lives
from tests.support.claims import check_claims
from tests.support.processes import worker_process
from tests.support.replayer import make_replayer
from workflows import pack_workflow
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow
from workflows.packs.state import PackState

pytestmark = [pytest.mark.xdist_group("replay"), pytest.mark.timeout(120)]  # what they share is made once

ALL_LIVES = (*LIVES, *PACK_LIVES)
Lives = dict[str, "asyncio.Task[list[WorkflowHistory]]"]


@pytest.fixture(scope="module")
async def lives(client: Client) -> AsyncIterator[Lives]:
    """All lives, lived side by side: most of each is waiting."""
    stopping = asyncio.Event()
    serving = asyncio.create_task(serve_lives(client, stopping))
    living = {name: asyncio.create_task(live(client, name)) for name in ALL_LIVES}
    yield living

    for life in living.values():
        life.cancel()
    await asyncio.gather(*living.values(), return_exceptions=True)
    stopping.set()
    await serving


@pytest.mark.parametrize("name", ALL_LIVES)
async def test_each_run_replays_its_own_history(lives: Lives, name: str) -> None:
    """The workflow code decides again, in the sandbox, as it decided when it lived, whatever came between."""
    replayer = make_replayer(workflows=[MessageWorkflow, PackWorkflow], data_converter=DATA_CONVERTER)
    for history in await lives[name]:
        assert (await replayer.replay_workflow(history)).replay_failure is None
        assert count_types(history.events)["WORKFLOW_TASK_FAILED"] == _count_refused(history.events)


def _count_refused(events: Sequence[HistoryEvent]) -> int:
    """Count the tasks that the server refused because a signal had come meanwhile."""
    refused = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    return sum(event.workflow_task_failed_event_attributes.cause == refused for event in events)


async def test_a_pack_continues_as_new_while_calls_are_in_flight(lives: Lives) -> None:
    """The next run is told of them, and asks their process for what they come to."""
    inputs = [await _read_input(history) for history in await lives["pack_in_flight"]]
    asked = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for history in (await lives["pack_in_flight"])[1:]
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]

    assert any(wire.get("in_flight") for wire in inputs[1:])
    assert "await_calls" in asked


async def _read_input(history: WorkflowHistory) -> Mapping[str, Any]:
    payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
    (wire,) = await DATA_CONVERTER.decode(list(payloads))
    return wire


@pytest.mark.long
async def test_a_run_whose_worker_is_killed_with_calls_in_flight_replays(
    server: EmbeddedServer, client: Client, settings: Settings, ledger: Ledger
) -> None:
    """Its calls count as lost; the next worker calls their handlers again, and replays what the first one did."""
    kind = "ledger-one-pack"
    starter = BulkStarter(client, settings, encodings={kind: Pack(packs=1, size=100, coalesce=timedelta(0))})
    slow = {"slow": {"work": 8, "delay": 1, "cycles": 1}}
    quick = {f"quick{n}": {"delay": 1, "cycles": 2} for n in range(5)}
    envelopes = [Envelope(kind=kind, id=i, lane="short", payload=payload) for i, payload in (slow | quick).items()]
    _ = [receipt async for receipt in starter.start_all((None, e) for e in envelopes)]
    pack = client.get_workflow_handle(pack_workflow_id(kind, 0))

    def count_done() -> int:
        return len({entry.id for entry in ledger.entries if entry.what == "done"})

    async with worker_process(server, settings) as worker:
        await wait_until(lambda: count_done() == len(quick), "the quick ones are done while the slow one works")
        worker.kill()
    async with worker_process(server, settings):
        await wait_until(lambda: count_done() == len(envelopes), "the slow one is done too", seconds=60)
        history = await wait_at_rest(pack, {})

    replayer = make_replayer(workflows=[PackWorkflow], data_converter=DATA_CONVERTER)
    assert (await replayer.replay_workflow(history)).replay_failure is None
    assert count_types(history.events)["ACTIVITY_TASK_TIMED_OUT"] == 1


@pytest.mark.parametrize("name", PACK_LIVES)
async def test_a_history_is_read_as_no_more_than_its_pack_is(
    lives: Lives, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read without a worker is what the pack itself has after a replay: states and ids that are claimed."""
    replayed: list[PackState] = []

    class Seen(PackState):
        def __init__(self, wire: Mapping[str, Any]) -> None:
            super().__init__(wire)
            replayed.append(self)

    monkeypatch.setattr(pack_workflow, "PackState", Seen)
    runner = UnsandboxedWorkflowRunner()
    replayer = make_replayer(workflows=[PackWorkflow], data_converter=DATA_CONVERTER, workflow_runner=runner)
    for history in await lives[name]:
        assert (await replayer.replay_workflow(history)).replay_failure is None
        *events, last = history.events
        is_over = last.HasField("workflow_execution_continued_as_new_event_attributes")
        found = await read_run(events if is_over else [*events, last], DATA_CONVERTER)
        check_claims(found, StoredPack(state=replayed[-1]))


@workflow.defn(name="message", sandboxed=False)
class ChangedWithoutPatch(MessageWorkflow):
    """What a careless change looks like: one more activity before everything else."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Do something else first."""
        await workflow.execute_activity("something_else", start_to_close_timeout=timedelta(seconds=1))
        return await super().run(wire)


@workflow.defn(name="pack", sandboxed=False)
class PackChangedWithoutPatch(PackWorkflow):
    """The same carelessness, a thousand messages at a time."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Do something else first."""
        await workflow.execute_activity("something_else", start_to_close_timeout=timedelta(seconds=1))
        return await super().run(wire)


@pytest.mark.parametrize("name", ALL_LIVES)
async def test_a_run_that_another_code_would_live_otherwise_does_not_replay(lives: Lives, name: str) -> None:
    """A replay that could not fail would prove nothing."""
    changed = [ChangedWithoutPatch, PackChangedWithoutPatch]
    replayer = make_replayer(
        workflows=changed, workflow_runner=UnsandboxedWorkflowRunner(), data_converter=DATA_CONVERTER
    )
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow((await lives[name])[0])


async def test_a_signal_that_meets_a_refused_continue_as_new_is_not_lost(lives: Lives) -> None:
    """A stop that arrives while a run tries to continue as new stops the message."""
    before, task, _ = _split_last_task((await lives["loop"])[0])
    stopped = await _find_stopping(lives)
    signal = _signalled("stop", b'{"reason":"enough"}')
    scheduled, begun, finished = task

    await _replay([*before, scheduled, begun, _refused(), signal, scheduled, begun, finished, *stopped])


@pytest.mark.parametrize("is_outcome_first", [True, False])
async def test_a_cancellation_that_meets_continue_as_new_is_not_lost(lives: Lives, *, is_outcome_first: bool) -> None:
    """One that comes in the very task in which a run would continue as new stops the message, like a signal `stop`."""
    (*before, decided), task, _ = _split_last_task((await lives["loop"])[0])
    stopped = await _find_stopping(lives)
    assert decided.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    requested = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED, event_time=decided.event_time
    )
    requested.workflow_execution_cancel_requested_event_attributes.SetInParent()
    both = [decided, requested] if is_outcome_first else [requested, decided]

    await _replay([*before, *both, *task, *stopped])


@pytest.mark.parametrize("signal", ["revise", None])
async def test_a_revision_between_the_last_outcome_and_the_end_is_not_lost(lives: Lives, signal: str | None) -> None:
    """With another payload in the history before the task that would end it, a message that was done is not over."""
    before, task, end = _split_last_task((await lives["loop"])[-1])
    assert before[-1].event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
    meanwhile = [_signalled(signal, b'{"payload":["done"]}')] if signal else []
    replaying = _replay([*before, *meanwhile, *task, *end])

    if signal is None:
        await replaying
    else:
        with pytest.raises(NondeterminismError):  # the end is in this history, and it would have lost the payload
            await replaying


async def _find_stopping(lives: Lives) -> list[HistoryEvent]:
    """Give what a run that does not sleep commands when it is stopped; the one that is taken for it has a timer."""
    *_, stopped = _split_last_task((await lives["steered"])[-1])
    return [event for event in stopped if event.event_type != EventType.EVENT_TYPE_TIMER_CANCELED]


def _split_last_task(
    history: WorkflowHistory,
) -> tuple[list[HistoryEvent], list[HistoryEvent], list[HistoryEvent]]:
    """Split a history into what came before its last task, the three events of that task, and what it commanded."""
    events = list(history.events)
    scheduled = max(n for n, e in enumerate(events) if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED)
    return events[:scheduled], events[scheduled : scheduled + 3], events[scheduled + 3 :]


async def _replay(events: list[HistoryEvent]) -> None:
    history = WorkflowHistory("replay:spliced", _number(events))
    await make_replayer(workflows=[MessageWorkflow], data_converter=DATA_CONVERTER).replay_workflow(history)


def _signalled(name: str, wire: bytes) -> HistoryEvent:
    event = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    event.workflow_execution_signaled_event_attributes.signal_name = name
    payload = event.workflow_execution_signaled_event_attributes.input.payloads.add(data=wire)
    payload.metadata["encoding"] = b"json/plain"
    return event


def _refused() -> HistoryEvent:
    event = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
    event.workflow_task_failed_event_attributes.cause = (
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    )
    return event


_TASK_REFERENCES = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: "scheduled_event_id",
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: "started_event_id",
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: "workflow_task_completed_event_id",
}
_TASK_EVENTS = {*_TASK_REFERENCES, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED}


def _number(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """Copy events into a history of their own; those of workflow tasks, and commands, refer to the tasks in it."""
    copies: list[HistoryEvent] = []
    last = dict.fromkeys(_TASK_REFERENCES.values(), 0)

    for number, event in enumerate(events, start=1):
        copy = HistoryEvent()
        copy.CopyFrom(event)
        copy.event_id = number
        attributes = getattr(copy, copy.WhichOneof("attributes") or "", None)

        for name, value in last.items():
            # of timers and activities, an id refers to what began them; nothing before those was moved
            is_of_task = event.event_type in _TASK_EVENTS or name == "workflow_task_completed_event_id"
            if is_of_task and attributes is not None and name in attributes.DESCRIPTOR.fields_by_name:
                setattr(attributes, name, value)

        copies.append(copy)
        if event.event_type in _TASK_REFERENCES:
            last[_TASK_REFERENCES[event.event_type]] = number

    return copies
