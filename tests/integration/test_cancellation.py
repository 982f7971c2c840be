"""Cancellation: the Web UI's largest button stops a message, and does nothing to what is more than one message."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities import Again, Context, Done, Message, Reject, handler
from shared.keepers.capacity import CAPACITY_MEMO, CAPACITY_WORKFLOW, MEASURED
from shared.keepers.gates import CLOSE, GATES_MEMO, GATES_WORKFLOW
from shared.keepers.idle import IDLE_MEMO, IDLE_WORKFLOW
from shared.lanes import task_queue
from shared.messages.placement import LAYOUT_MEMO, LAYOUT_WORKFLOW
from shared.messages.signals import Pause, Stop
from shared.settings import Settings
from tests.conftest import Begin, Serve, wait_until
from tests.support.replayer import make_replayer
from tests.support.subjects import Subject
from workflows.keepers import IdleWorkflow
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

PHASES = [("short", "asleep"), ("short", "paused"), ("short", "parked"), ("short", "running"), ("medium", "running")]
DISTURBED = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCEL_REQUESTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
}


@dataclass
class Calls:
    """A handler's calls, (id, version) each: begun, and run to their end; `gate` holds those with payload "slow"."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    begun: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    finished: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings of a test, in the sandbox: here all workflow types meet it."""
    return replace(settings, sandbox=True)


@pytest.fixture
async def calls(serve: Serve, kind: str) -> AsyncIterator[Calls]:
    """Workers whose one handler does what a message's payload asks for."""
    calls = Calls()

    @handler(kind, timeout=timedelta(seconds=25))
    async def work(message: Message, ctx: Context) -> Again | Done | Reject:
        call = (message.id, message.version)
        calls.begun[call] += 1
        if message.payload == "slow":
            await calls.gate.wait()

        calls.finished[call] += 1
        match message.payload, message.version:
            case "parked", _:
                return Reject("told to")
            case "twice", 0:
                return Again(after=timedelta(seconds=1), tolerance=timedelta(0))
            case "twice", _:
                return Done()
            case _:
                return Again(after=timedelta(hours=1), tolerance=timedelta(0))

    async with serve(work, lanes=("short", "medium")):
        yield calls
        calls.gate.set()


async def bring_to(phase: str, lane: str, calls: Calls, begin: Begin, kind: str) -> Subject:
    """Start a message on a lane and bring it to a phase; a running one is held by the gate."""
    message = await begin(kind, lane=lane, payload={"running": "slow"}.get(phase, phase))
    await wait_until(lambda: calls.begun[message.id, 0], "the handler was called")
    if phase == "running":
        return message

    await wait_until(
        lambda: message.has(state="parked" if phase == "parked" else "active", version=phase != "parked"), "decided"
    )
    if phase == "paused":
        await message.send_from_sdk(Pause())
        await wait_until(lambda: message.has(state="paused"), "it is paused")

    return message


async def request_cancellation(handle: WorkflowHandle[Any, Any]) -> None:
    """Press the Web UI's button, and once more."""
    for _ in range(2):
        try:
            await handle.cancel()
        except RPCError as exc:  # a server may say that the first request is under way
            assert "cancel" in str(exc).lower()  # noqa: PT017 — whether it raises is the server's matter
    await wait_until(
        lambda: _has_event(handle, EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED), "the server has it"
    )


async def _has_event(handle: WorkflowHandle[Any, Any], wanted: "EventType.ValueType") -> bool:
    return wanted in await _events(handle)


async def _events(handle: WorkflowHandle[Any, Any]) -> set[int]:
    return {event.event_type async for event in handle.fetch_history_events()}


async def _replay(handle: WorkflowHandle[Any, Any]) -> None:
    history = await handle.fetch_history()
    await make_replayer(workflows=[MessageWorkflow, PackWorkflow]).replay_workflow(history)


@pytest.mark.parametrize("encoding", ["solo"])
@pytest.mark.parametrize(("lane", "phase"), PHASES)
async def test_cancelling_a_message_is_stopping_it(
    calls: Calls, begin: Begin, kind: str, lane: str, phase: str
) -> None:
    """In every phase it ends as one that got the signal `stop`; a handler that is at work finishes first."""
    cancelled, stopped = [await bring_to(phase, lane, calls, begin, kind) for _ in range(2)]
    await request_cancellation(cancelled.handle)
    await stopped.send_from_sdk(Stop("cancellation was requested"))
    calls.gate.set()

    ends = [await message.wait_ended() for message in (cancelled, stopped)]
    tellings = [(await message.explain())[-1] for message in (cancelled, stopped)]
    described = [await message.handle.describe() for message in (cancelled, stopped)]
    assert ends[0] == ends[1] == {"state": "stopped", "version": int(phase != "parked"), "result": None}
    assert [(told["what"], told["reason"]) for told in tellings] == [("stop", "cancellation was requested")] * 2
    assert [d.status for d in described] == [WorkflowExecutionStatus.COMPLETED] * 2
    assert [d.search_attributes["State"] for d in described] == [["stopped"]] * 2
    assert calls.finished == calls.begun == Counter({(m.id, 0): 1 for m in (cancelled, stopped)})
    assert not DISTURBED & await _events(cancelled.handle)
    await _replay(cancelled.handle)


@pytest.mark.parametrize("encoding", ["solo"])
async def test_a_message_cancelled_before_a_worker_has_seen_it_is_stopped_without_a_call(
    serve: Serve, begin: Begin, kind: str
) -> None:
    """As with `stop`, its handler is not called, though it was due."""
    called: list[Message] = []

    @handler(kind)
    async def unneeded(message: Message, ctx: Context) -> Done:
        called.append(message)
        return Done()

    message = await begin(kind)
    await request_cancellation(message.handle)
    async with serve(unneeded, lanes=("short",)):
        assert (await message.wait_ended())["state"] == "stopped"

    assert not called
    await _replay(message.handle)


@pytest.mark.parametrize("encoding", ["pack"])
@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_a_pack_goes_on_as_if_nobody_had_cancelled_it(calls: Calls, begin: Begin, kind: str, lane: str) -> None:
    """With a batch under way and messages asleep, requested twice: each version of each message runs exactly once."""
    soon = datetime.now(UTC) + timedelta(seconds=3)
    first = await begin(kind, lane=lane, payload="twice", scheduled_at=soon)
    *names, last = first.neighbours(10)
    asleep = [first, *[await begin(kind, name, lane=lane, payload="twice", scheduled_at=soon) for name in names]]
    slow = await begin(kind, last, lane=lane, payload="slow")
    await wait_until(lambda: calls.begun[slow.id, 0], "a batch is under way")
    await request_cancellation(slow.handle)
    calls.gate.set()

    for message in asleep:
        assert (await message.wait_ended())["state"] == "done"
    await wait_until(lambda: slow.has(state="active", version=1), "what ran meanwhile comes back later")
    details = await slow.handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    assert (await slow.handle.describe()).status == WorkflowExecutionStatus.RUNNING
    assert calls.finished == calls.begun == Counter([(slow.id, 0), *((m.id, v) for m in asleep for v in (0, 1))])
    assert details.current_details.count("is ignored") == 1
    assert not DISTURBED & await _events(slow.handle)
    await _replay(slow.handle)


LAYOUT = {"lane": "short", "packs": 3, "size": 1000, "coalesce": 60.0}


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("workflow", "memo", "signal"),
    [
        (GATES_WORKFLOW, GATES_MEMO, (CLOSE, {"gate": "g", "opens_at": 2e9, "reason": "r"})),
        (IDLE_WORKFLOW, IDLE_MEMO, ("limits", {"pack_messages": 7})),
        (CAPACITY_WORKFLOW, CAPACITY_MEMO, (MEASURED, "worker", 7.0)),
        (LAYOUT_WORKFLOW, LAYOUT_MEMO, ("grow", {"packs": 4})),
    ],
)
async def test_the_workflows_beside_messages_ignore_cancellation(
    client: Client, settings: Settings, workflow: str, memo: str, signal: tuple[Any, ...]
) -> None:
    """Gates, idle capacity with a shift under way, measured capacity and layouts take signals as before."""
    queue = task_queue(settings.task_queue_prefix, "short")
    handle = await client.start_workflow(workflow, id=queue, task_queue=queue, memo={LAYOUT_MEMO: LAYOUT})
    if workflow == IDLE_WORKFLOW:
        await handle.signal("on")
        await wait_until(
            lambda: _has_event(handle, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED), "a shift is under way"
        )
    await wait_until(lambda: _has_event(handle, EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED), "it has begun")
    before = await (await handle.describe()).memo()
    await request_cancellation(handle)
    details = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    disturbed = DISTURBED & await _events(handle)
    await handle.signal(signal[0], args=signal[1:])

    async def is_heard() -> bool:
        return (await (await handle.describe()).memo())[memo] != before.get(memo)

    await wait_until(is_heard, "it hears what comes after")
    status = (await handle.describe()).status
    await handle.terminate()
    assert status == WorkflowExecutionStatus.RUNNING
    assert details.current_details.count("is ignored") == 1
    assert not disturbed


async def test_a_shift_that_no_worker_has_taken_is_called_off(client: Client, settings: Settings) -> None:
    """Switched off then, the idle workflow goes on; also where cancellation was requested before."""
    queue = task_queue(settings.task_queue_prefix, "short")
    async with Worker(client, task_queue=queue, workflows=[IdleWorkflow]):
        handle = await client.start_workflow(IDLE_WORKFLOW, id=queue, task_queue=queue)
        await handle.signal("on")
        await wait_until(
            lambda: _has_event(handle, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED), "a shift is asked for"
        )
        await request_cancellation(handle)
        await handle.signal("off")
        await wait_until(lambda: _has_event(handle, EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED), "it is called off")
        details = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        status = (await handle.describe()).status
        await handle.terminate()

    assert status == WorkflowExecutionStatus.RUNNING
    assert details.current_details.startswith("**off**")
