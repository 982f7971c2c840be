"""What a worker does when a run leaves its cache: frees the memory at once, and tells the server.

The server keeps on sending a run's tasks to the worker that had the run last, without the beginning of its history. A
worker that lacks the run must then ask for the whole, which costs both of them more than the task itself; and where far
more is asleep than fits the cache, that is nearly every task. Told of the eviction, the server puts the next task into
the lane's own queue, with all of its history, in turn with those of new runs.

A task that waits in the worker's sticky queue already when the server is told is dropped there ("rejecting sticky
poller"), and the next one comes after the lane's `sticky_timeout`. Signals come in bursts, as from a bridge, and the
result of an activity comes soon: so the server is not told of a run that has had a signal since its last timer, or
that has an activity in flight.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.bridge.proto.workflow_activation import RemoveFromCache, WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner
from temporalio.workflow import Info

from shared.temporal.connect import CALL_TIMEOUT
from worker.lanes.activations import detach, let_go
from worker.lanes.cache import Cache, find_held_bytes
from worker.lanes.runner import WrappingRunner

CALLS_AT_ONCE = 4
WAITING_MAX = 1000


class Evictions:
    """Runs that had to make room for others, and of which the server is still to be told."""

    def __init__(self) -> None:
        """Call it where the event loop of `report` runs."""
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[WorkflowExecution] = asyncio.Queue(WAITING_MAX)

    def note(self, workflow_id: str, run_id: str) -> None:
        """Note a run, from any thread; it is forgotten when too many wait, and then its next task costs more."""
        execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
        with contextlib.suppress(RuntimeError):  # the loop has been closed, so nobody tells any more
            self._loop.call_soon_threadsafe(self._put, execution)

    def _put(self, execution: WorkflowExecution) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(execution)

    async def report(self, client: Client) -> None:
        """Tell the server of each run, for ever; what it does not take is forgotten."""
        await asyncio.gather(*(self._report(client) for _ in range(CALLS_AT_ONCE)))

    async def _report(self, client: Client) -> None:
        while True:
            execution = await self._waiting.get()
            request = ResetStickyTaskQueueRequest(namespace=client.namespace, execution=execution)
            with contextlib.suppress(RPCError):  # it has ended meanwhile, or there is no server
                await client.workflow_service.reset_sticky_task_queue(request, timeout=CALL_TIMEOUT)


class ReleasingRunner(WrappingRunner):
    """Runs workflows as another runner does, and notices which of them are in the cache and leave it."""

    def __init__(self, runner: WorkflowRunner, note: Callable[[str, str], None], cache: Cache) -> None:
        """`note` gets the workflow id and run id of runs that had to make room for others, in any thread.

        Those that have had a signal since their last timer, or that have an activity in flight, are left out.
        """
        super().__init__(runner)
        self._note = note
        self._cache = cache

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create a run's instance, which is empty after its eviction."""
        details = detach(det)
        instance = super().create_instance(details)
        activate = instance.activate
        expectation = _Expectation()

        def activate_and_let_go(act: WorkflowActivation) -> WorkflowActivationCompletion:
            completion = activate(act)
            let_go(instance)

            if act.jobs and act.jobs[0].HasField("remove_from_cache"):
                self._note_eviction(act, details.info, expectation)
                _release(instance)
            else:
                expectation.follow(act, completion)
                self._cache.note(act.run_id, find_held_bytes(instance), self._evict)

            return completion

        instance.activate = activate_and_let_go
        return instance

    def _note_eviction(self, act: WorkflowActivation, info: Info, expectation: "_Expectation") -> None:
        held_too_much = not self._cache.forget(act.run_id)
        was_one_too_many = act.jobs[0].remove_from_cache.reason == RemoveFromCache.CACHE_FULL
        if (was_one_too_many or held_too_much) and not expectation.is_near:
            self._note(info.workflow_id, act.run_id)


class _Expectation:
    """Whether a run's next task is near, by what it has been given and has asked for."""

    def __init__(self) -> None:
        self._is_signalled = False
        self._in_flight = 0

    @property
    def is_near(self) -> bool:
        return self._is_signalled or self._in_flight > 0

    def follow(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> None:
        if any(job.HasField("signal_workflow") for job in act.jobs):
            self._is_signalled = True
        elif any(job.HasField("fire_timer") for job in act.jobs):
            self._is_signalled = False
        self._in_flight -= sum(job.HasField("resolve_activity") for job in act.jobs)
        self._in_flight += sum(c.HasField("schedule_activity") for c in completion.successful.commands)


def _release(instance: WorkflowInstance) -> None:
    """Take apart an instance that nobody uses any more: it is in cycles, which are collected only now and then."""
    # temporalio 1.35 keeps the workflow's own object under this name; without it, only the collector frees that
    holders = [vars(each) for each in (getattr(instance, "_object", None), instance) if each is not None]
    held = [dict(holder) for holder in holders]
    for holder in holders:
        holder.clear()
    # the instance is an event loop too, and hears of each unfinished task that is freed: so they are freed after this
    vars(instance)["call_exception_handler"] = _ignore
    del held


def _ignore(_: Any) -> None:
    pass
