"""A deploy must not break messages that are asleep: recorded histories replay, and the command sequence is guarded."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from shared.temporal.converter import DATA_CONVERTER
from tests.replay.runs import fingerprint
from tests.replay.scenarios import FINGERPRINTS, HISTORIES, LIVES, PACK_LIVES, SUFFIXES, live, serve_lives
from tests.replayer import make_replayer
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow
from workflows.replay.signal_buffer import SignalBuffer

pytestmark = pytest.mark.xdist_group("replay")  # what they share is made once

ALL_LIVES = (*LIVES, *PACK_LIVES)
RECORDED = sorted(HISTORIES.rglob("*.json"))
FOUND = HISTORIES / "found"
BEFORE = HISTORIES / "before-serial"
"""Recorded when signals that were held back acted all at once, as they still do in what was started then."""


def read(path: Path) -> WorkflowHistory:
    """Read one recorded run."""
    return WorkflowHistory.from_json("replay:recorded", path.read_text())


@pytest.mark.parametrize("path", RECORDED, ids=[path.relative_to(HISTORIES).as_posix() for path in RECORDED])
async def test_a_recorded_history_replays(path: Path) -> None:
    """Today's workflow code makes the same decisions that it made when the history was recorded, in the sandbox."""
    result = await make_replayer(
        workflows=[MessageWorkflow, PackWorkflow], data_converter=DATA_CONVERTER
    ).replay_workflow(read(path))

    assert result.replay_failure is None


def test_every_life_has_a_recorded_history() -> None:
    """No scenario is missing from the recordings, and none is left over."""
    assert {path.stem.rpartition("-")[0] for path in RECORDED if path.parent != FOUND} == set(ALL_LIVES)


@pytest.fixture(scope="module")
async def lives(client: Client) -> AsyncIterator[dict[str, "asyncio.Task[list[WorkflowHistory]]"]]:
    """All lives, lived side by side: most of each is waiting."""
    stopping = asyncio.Event()
    serving = asyncio.create_task(serve_lives(client, stopping))
    living = {name: asyncio.create_task(live(client, name, suffix=SUFFIXES[1])) for name in ALL_LIVES}
    yield living
    for life in living.values():
        life.cancel()
    await asyncio.gather(*living.values(), return_exceptions=True)
    stopping.set()
    await serving


@pytest.mark.parametrize("name", ALL_LIVES)
async def test_the_command_sequence_is_the_committed_one(
    lives: dict[str, "asyncio.Task[list[WorkflowHistory]]"], client: Client, name: str
) -> None:
    """A change of what a workflow asks of the server needs `workflow.patched` and a new recording, on purpose."""
    expected = json.loads(FINGERPRINTS.read_text())[name]
    lived = fingerprint(await lives[name])
    if lived != expected:  # a machine that stands still for a second is late for a timer: once more, by itself
        lived = fingerprint(await live(client, name, suffix=SUFFIXES[2]))

    assert lived == expected, (
        "the workflow's commands changed: messages asleep under the old code would fail to replay. Guard the change "
        "with workflow.patched(), keep the old histories, and record the new ones (tests/replay/README.md)"
    )


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


def _make_older(buffer: SignalBuffer) -> None:
    """Have a run name its activities as older code does; the class itself is at work in this process meanwhile."""
    vars(buffer).update(exclude_older_workers=lambda: None, next_activity_id=lambda: None)


@workflow.defn(name="message", sandboxed=False)
class OlderMessage(MessageWorkflow):
    """What a worker of an older version would make of a message."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)
        _make_older(self._signal_buffer)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Go on as ever."""
        return await super().run(wire)


@workflow.defn(name="pack", sandboxed=False)
class OlderPack(PackWorkflow):
    """What it would make of a pack."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)
        _make_older(self._signal_buffer)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Go on as ever."""
        return await super().run(wire)


@pytest.mark.parametrize(
    "name", ["loop-0", "loop_medium-0", "lane_move-1", "pack_loop-0", "pack_loop-1", "pack_loop_medium-0"]
)
async def test_older_workers_do_not_continue_what_they_would_replay_otherwise(name: str) -> None:
    """The first activity of a run whose first task was done by today's code has an id that older code does not give."""
    replayer = make_replayer(
        workflows=[OlderMessage, OlderPack],
        workflow_runner=UnsandboxedWorkflowRunner(),
        data_converter=DATA_CONVERTER,
    )

    with pytest.raises((NondeterminismError, RuntimeError)):
        await replayer.replay_workflow(read(HISTORIES / f"{name}.json"))


@pytest.mark.parametrize("path", RECORDED, ids=[path.relative_to(HISTORIES).as_posix() for path in RECORDED])
async def test_a_change_without_a_patch_is_found(path: Path) -> None:
    """Every single recording would catch an added command."""
    changed = [ChangedWithoutPatch, PackChangedWithoutPatch]
    replayer = make_replayer(
        workflows=changed, workflow_runner=UnsandboxedWorkflowRunner(), data_converter=DATA_CONVERTER
    )
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(read(path))


@workflow.defn(name="message", sandboxed=False)
class ChangedBehindAPatch(MessageWorkflow):
    """The same change as it should be made."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Do something else first, where no older code has been at work."""
        if workflow.patched("something-else"):
            await workflow.execute_activity("something_else", start_to_close_timeout=timedelta(seconds=1))
        return await super().run(wire)


@workflow.defn(name="pack", sandboxed=False)
class PackChangedBehindAPatch(PackWorkflow):
    """The same, a thousand messages at a time."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__(wire)

    @workflow.run
    async def run(self, wire: dict[str, Any]) -> Any:
        """Do something else first, where no older code has been at work."""
        if workflow.patched("something-else"):
            await workflow.execute_activity("something_else", start_to_close_timeout=timedelta(seconds=1))
        return await super().run(wire)


@pytest.mark.parametrize("path", RECORDED, ids=[path.relative_to(HISTORIES).as_posix() for path in RECORDED])
async def test_a_change_behind_a_patch_replays(path: Path) -> None:
    """Messages that are asleep take the old way to their next run; the guard is all that a change needs."""
    changed = [ChangedBehindAPatch, PackChangedBehindAPatch]
    result = await make_replayer(
        workflows=changed, workflow_runner=UnsandboxedWorkflowRunner(), data_converter=DATA_CONVERTER
    ).replay_workflow(read(path))

    assert result.replay_failure is None


async def test_a_signal_that_meets_a_refused_continue_as_new_is_not_lost() -> None:
    """A stop that arrives while a run tries to continue as new stops the message."""
    *before, begun, finished, _ = read(BEFORE / "loop-0.json").events
    *_, indexed, stopped = read(BEFORE / "steered-1.json").events
    signal = _signalled("stop", b'{"reason":"enough"}')
    order = [*before, begun, _refused(), signal, before[-1], begun, finished, indexed, stopped]

    await make_replayer(workflows=[MessageWorkflow]).replay_workflow(WorkflowHistory("replay:refused", _number(order)))


@pytest.mark.parametrize("is_timer_first", [True, False])
async def test_a_cancellation_that_meets_continue_as_new_is_not_lost(*, is_timer_first: bool) -> None:
    """One that comes in the very task in which a run would continue as new stops the message, like a signal `stop`."""
    *before, fired, scheduled, begun, finished, _ = read(BEFORE / "loop-0.json").events
    *_, indexed, stopped = read(BEFORE / "steered-1.json").events
    assert fired.event_type == EventType.EVENT_TYPE_TIMER_FIRED
    requested = HistoryEvent(
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED, event_time=fired.event_time
    )
    requested.workflow_execution_cancel_requested_event_attributes.SetInParent()
    both = [fired, requested] if is_timer_first else [requested, fired]
    order = [*before, *both, scheduled, begun, finished, indexed, stopped]

    await make_replayer(workflows=[MessageWorkflow]).replay_workflow(
        WorkflowHistory("replay:cancelled", _number(order))
    )


@pytest.mark.parametrize("signal", ["revise", None])
async def test_a_revision_between_the_last_outcome_and_the_end_is_not_lost(signal: str | None) -> None:
    """With another payload in the history before the run settled, a message that was done is not over."""
    *before, settled, scheduled, begun, finished, indexed, completed = read(BEFORE / "loop-1.json").events
    assert settled.event_type == EventType.EVENT_TYPE_TIMER_FIRED
    meanwhile = [_signalled(signal, b'{"payload":["done"]}')] if signal else []
    order = [*before, *meanwhile, settled, scheduled, begun, finished, indexed, completed]
    replaying = make_replayer(workflows=[MessageWorkflow]).replay_workflow(
        WorkflowHistory("replay:done", _number(order))
    )

    if signal is None:
        await replaying
    else:
        with pytest.raises(NondeterminismError):  # the end is in this history, and it would have lost the payload
            await replaying


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


def _number(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """Copy events into a history of their own with ids and references that follow the new order."""
    copies: list[HistoryEvent] = []
    timer = 0
    last = {"scheduled_event_id": 0, "started_event_id": 0, "workflow_task_completed_event_id": 0}
    names = {
        EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED: "scheduled_event_id",
        EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: "started_event_id",
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: "workflow_task_completed_event_id",
    }
    for number, event in enumerate(events, start=1):
        copy = HistoryEvent()
        copy.CopyFrom(event)
        copy.event_id = number
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED:
            timer = number
        if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED:
            copy.timer_fired_event_attributes.started_event_id = timer
            copies.append(copy)
            continue
        attributes = getattr(copy, copy.WhichOneof("attributes") or "", None)
        for name, value in last.items():
            if attributes is not None and name in attributes.DESCRIPTOR.fields_by_name:
                setattr(attributes, name, value)
        copies.append(copy)
        if event.event_type in names:
            last[names[event.event_type]] = number
    return copies
