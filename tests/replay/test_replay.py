"""A deploy must not break messages that are asleep: recorded histories replay, and the command sequence is guarded."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner
from temporalio.workflow import NondeterminismError

from tests.replay.scenarios import FINGERPRINTS, HISTORIES, LIVES, fingerprint, live, serve_lives
from workflows.message_workflow import MessageWorkflow

RECORDED = sorted(HISTORIES.glob("*.json"))


def read(path: Any) -> WorkflowHistory:
    """Read one recorded run."""
    return WorkflowHistory.from_json("replay:recorded", path.read_text())


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
async def test_a_recorded_history_replays(path: Any) -> None:
    """Today's workflow code makes the same decisions that it made when the history was recorded, in the sandbox."""
    result = await Replayer(workflows=[MessageWorkflow]).replay_workflow(read(path))

    assert result.replay_failure is None


def test_every_life_has_a_recorded_history() -> None:
    """No scenario is missing from the recordings, and none is left over."""
    assert {path.stem.rpartition("-")[0] for path in RECORDED} == set(LIVES)


@pytest.fixture(scope="module")
async def lives(client: Client) -> AsyncIterator[Client]:
    """Workers for the lives."""
    stopping = asyncio.Event()
    serving = asyncio.create_task(serve_lives(client, stopping))
    yield client
    stopping.set()
    await serving


@pytest.mark.parametrize("name", LIVES)
async def test_the_command_sequence_is_the_committed_one(lives: Client, name: str) -> None:
    """A change of what the workflow asks of the server needs `workflow.patched` and a new recording, on purpose."""
    expected = json.loads(FINGERPRINTS.read_text())[name]

    assert fingerprint(await live(lives, name, suffix="-now")) == expected, (
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


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
async def test_a_change_without_a_patch_is_found(path: Any) -> None:
    """Every single recording would catch an added command."""
    replayer = Replayer(workflows=[ChangedWithoutPatch], workflow_runner=UnsandboxedWorkflowRunner())
    with pytest.raises(NondeterminismError):
        await replayer.replay_workflow(read(path))


async def test_a_signal_that_meets_a_refused_continue_as_new_is_not_lost() -> None:
    """A stop that arrives while a run tries to end, after its result was recorded by an earlier task, still stops it.

    The server never writes this order twice alike, so the history is put together here from recorded events: result
    recorded, end refused because of the stop, the task done again. Code that ended as soon as the recorded result is
    resolved would continue as new here, and the replay would fail.
    """
    started, scheduled, begun, finished, result, gathered, indexed, _ = read(HISTORIES / "slow-0.json").events
    *_, stopped = read(HISTORIES / "steered-1.json").events
    signalled = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED)
    signalled.workflow_execution_signaled_event_attributes.signal_name = "stop"
    payload = signalled.workflow_execution_signaled_event_attributes.input.payloads.add(data=b'{"reason":"enough"}')
    payload.metadata["encoding"] = b"json/plain"
    refused = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)
    refused.workflow_task_failed_event_attributes.cause = (
        WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
    )
    order = [started, scheduled, begun, finished, result, scheduled, begun, refused, signalled]
    order += [scheduled, begun, finished, gathered, indexed, stopped]
    history = WorkflowHistory("replay:refused", _number(order))

    await Replayer(workflows=[MessageWorkflow]).replay_workflow(history)


def _number(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """Copy events into a history of their own with ids and references that follow the new order."""
    copies: list[HistoryEvent] = []
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
        attributes = getattr(copy, copy.WhichOneof("attributes") or "", None)
        for name, value in last.items():
            if attributes is not None and name in attributes.DESCRIPTOR.fields_by_name:
                setattr(attributes, name, value)
        copies.append(copy)
        if event.event_type in names:
            last[names[event.event_type]] = number
    return copies
