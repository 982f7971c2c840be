"""Runs that leave a worker's cache: their memory is free at once, and their next task finds any worker."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType, TaskQueueKind
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.worker import UnsandboxedWorkflowRunner

from activities import Again, Context, Message, handler
from activities.api.handler import Handler
from activities.registry import Registry
from bench.serving import run_plan
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from shared.temporal.converter import DATA_CONVERTER
from tests.conftest import Start, wait_until
from tests.replay.scenarios import live, serve_lives
from tests.support.replayer import make_replayer
from worker.lanes.cache import RUN_BYTES, Cache
from worker.lanes.evictions import Evictions, ReleasingRunner
from worker.lanes.profiles import PROFILES
from worker.run import WorkerPlan
from workflows.pack_workflow import PackWorkflow
from workflows.packs.state import PackState

TINY = replace(PROFILES["short"], workflow_slots=2, cached_workflows=2, workflow_pollers=4)


@handler("often")
async def often(message: Message, ctx: Context) -> Again:
    """Be due again each second."""
    return Again(after=timedelta(seconds=1))


@contextlib.asynccontextmanager
async def working(client: Client, settings: Settings, run: Handler = often) -> AsyncGenerator[None]:
    """Run a worker whose lane caches two runs, unless the settings say otherwise."""
    plan = WorkerPlan(
        settings=replace(settings, cycles_per_run=1000),
        registry=Registry([("the test", run)]),
        lanes=("short",),
        profiles={"short": TINY},
    )
    async with run_plan(client, plan):
        yield


async def test_the_task_of_a_run_that_was_evicted_goes_to_any_worker(
    client: Client, settings: Settings, start: Start
) -> None:
    """Else it goes to the worker that had the run, which must ask for the history that it no longer has."""
    handles = [await start("often") for _ in range(5)]

    async def find_returned() -> list[bool]:
        return [True for handle in handles if await _was_returned(handle)]

    async with working(client, settings):
        await wait_until(find_returned, "a task of an evicted run in the lane's own queue")


async def test_runs_leave_a_cache_that_holds_more_bytes_than_it_may(
    client: Client, settings: Settings, start: Start
) -> None:
    """They go on as those do for which there are too many others: with their next task on any worker."""
    handles = [await start("often") for _ in range(5)]

    async def find_returned() -> list[bool]:
        return [True for handle in handles if await _was_returned(handle)]

    async def have_gone_on() -> bool:
        return all([len(await _find_tasks(handle)) >= 5 for handle in handles])

    async with working(client, replace(settings, cached_workflows=100, cached_bytes=2 * RUN_BYTES)):
        await wait_until(find_returned, "a task of an evicted run in the lane's own queue")
        await wait_until(have_gone_on, "each has had several tasks")


async def test_a_worker_keeps_as_many_runs_as_its_settings_say(
    client: Client, settings: Settings, start: Start
) -> None:
    """More than its lane would: each goes on where it is, without its history."""
    handles = [await start("often") for _ in range(5)]

    async def have_gone_on() -> bool:
        return all([len(await _find_tasks(handle)) >= 5 for handle in handles])

    async with working(client, replace(settings, cached_workflows=5)):
        await wait_until(have_gone_on, "each has had several tasks")

    assert [await _was_returned(handle) for handle in handles] == [False] * 5


async def test_a_run_that_has_just_had_a_signal_stays_with_its_worker(
    client: Client, settings: Settings, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals come in bursts, and the server drops the task of one that comes while it is being told."""
    told: list[str] = []

    def note(_: Evictions, workflow_id: str, run_id: str) -> None:
        told.append(workflow_id)

    monkeypatch.setattr(Evictions, "note", note)
    handles = [await start("often", scheduled_at=datetime.now(UTC) + timedelta(days=1)) for _ in range(5)]

    async def signal_all(name: str) -> None:
        for handle in handles:
            await handle.signal(name)
            await wait_until(lambda: _has_taken(handle), "the signal has taken effect")  # noqa: B023 — awaited here

    async with working(client, settings):
        await wait_until(lambda: len(told) >= 3, "the server is told of those that had to make room")
        await signal_all("pause")
        told.clear()
        await signal_all("resume")

    assert not told


async def test_a_run_whose_handler_is_at_work_stays_with_its_worker(
    client: Client, settings: Settings, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result comes soon, and the server drops the task of one that comes while it is being told."""
    told: list[str] = []
    begun: list[str] = []
    is_over = asyncio.Event()

    def note(_: Evictions, workflow_id: str, run_id: str) -> None:
        told.append(workflow_id)

    @handler("held")
    async def hold(message: Message, ctx: Context) -> Again:
        begun.append(message.id)
        await is_over.wait()
        return Again(after=timedelta(days=1))

    monkeypatch.setattr(Evictions, "note", note)
    async with working(client, settings, hold):
        handles = [await start("held") for _ in range(5)]
        await wait_until(lambda: len(begun) == len(handles), "all handlers are at work")
        told_at_work = list(told)

        is_over.set()
        await wait_until(lambda: len(told) >= 3, "the server is told of those that sleep and had to make room")

    assert not told_at_work


async def _has_taken(handle: WorkflowHandle[Any, Any]) -> bool:
    """Return whether a run has no task left: each of its signals has been taken in."""
    return not (await handle.describe()).raw_description.HasField("pending_workflow_task")


async def _was_returned(handle: WorkflowHandle[Any, Any]) -> bool:
    """Return whether a task that is not the first, and no retry, was for any worker."""
    events = [event async for event in handle.fetch_history_events()]
    again = {EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED}
    if again & {event.event_type for event in events}:
        return False
    kinds = [task.workflow_task_scheduled_event_attributes.task_queue.kind for task in _scheduled(events)[1:]]
    return TaskQueueKind.TASK_QUEUE_KIND_NORMAL in kinds


async def _find_tasks(handle: WorkflowHandle[Any, Any]) -> list[HistoryEvent]:
    return _scheduled([event async for event in handle.fetch_history_events()])


def _scheduled(events: list[HistoryEvent]) -> list[HistoryEvent]:
    return [event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED]


async def _live_in_a_pack(client: Client) -> list[WorkflowHistory]:
    """Give the histories of a pack whose messages have come back until its run was full."""
    stopping = asyncio.Event()
    serving = asyncio.create_task(serve_lives(client, stopping, "evictions"))
    try:
        return await live(client, "pack_loop", "evictions")
    finally:
        stopping.set()
        await serving


@pytest.mark.parametrize("ending", ["asleep", "continued as new"])
async def test_a_pack_that_leaves_the_cache_is_freed_without_the_garbage_collector(
    client: Client, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the SDK holds of a run is in cycles, and would keep a thousand messages until those are found."""
    states: list[weakref.ref[PackState]] = []
    load = PackState.__init__

    def note(self: PackState, wire: Any) -> None:
        load(self, wire)
        states.append(weakref.ref(self))

    history, *_ = await _live_in_a_pack(client)
    assert history.events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
    if ending == "asleep":
        slept = [n for n, e in enumerate(history.events) if e.event_type == EventType.EVENT_TYPE_TIMER_STARTED]
        history = WorkflowHistory("replay:recorded", history.events[: slept[0] + 1])
    monkeypatch.setattr(PackState, "__init__", note)
    evicted: list[str] = []
    replayer = make_replayer(
        workflows=[PackWorkflow],
        data_converter=DATA_CONVERTER,
        workflow_runner=ReleasingRunner(
            UnsandboxedWorkflowRunner(),
            lambda workflow_id, _: evicted.append(workflow_id),
            Cache(0, Telemetry(is_on=False)),
        ),
    )

    gc.disable()
    try:
        await replayer.replay_workflow(history)
        freed = [state() is None for state in states]
    finally:
        gc.enable()

    assert freed == [True]
    assert not evicted, "no other run needed its place"
