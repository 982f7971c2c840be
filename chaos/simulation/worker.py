"""Workers: model processes with a cache of runs that execute workflow tasks and activities with dormice's own code."""

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from temporalio.api.enums.v1 import TimeoutType
from temporalio.bridge.proto.workflow_commands import ScheduleActivity, ScheduleLocalActivity
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import DISPATCH, Dispatch
from activities.server_calls import (
    FORWARD,
    MARK_SERIAL,
    SET_PRIORITY,
    forward_signals,
    mark_serial_run,
    set_own_priority,
)
from chaos.simulation import activation
from chaos.simulation.activation import WorkflowTaskFailure
from chaos.simulation.activities import ActivityTask
from chaos.simulation.replica import LocalActivity, NotDeterministic, Replica
from chaos.simulation.server import Server, WorkflowTask
from chaos.simulation.virtual_time import SKEW
from shared.packs.names import RUN_BATCH
from shared.temporal.converter import DATA_CONVERTER

NETWORK_SECONDS = 0.01
HEARTBEAT_SHARE = 0.8
"""Share of a task's timeout after which it asks the server for a new task if local activities are still running."""

WORKER: contextvars.ContextVar["Worker"] = contextvars.ContextVar("WORKER")
IS_CURRENT: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("IS_CURRENT")
"""In a running activity, says whether the server still waits for it."""


class Worker:
    """One worker process, from its start to its death."""

    def __init__(self, name: str, server: Server, dispatch: Dispatch, client: Any, *, seed: str) -> None:
        faults = server.faults
        self.name = name
        self.server = server
        self.faults = faults
        self.rng = random.Random(f"{seed}|{name}")
        self.is_alive = True
        self.is_draining = False
        self.stalled_until = 0.0
        self.loop = asyncio.get_running_loop()
        self.cache: dict[str, Replica] = {}
        self.tasks: dict[str, _TaskAtWork] = {}
        self.client: Any = client
        self._running: dict[asyncio.Task[Any], ActivityEnvironment] = {}
        self._context = contextvars.copy_context()
        self._context.run(SKEW.set, self.rng.uniform(-faults.skew, faults.skew))
        self._context.run(WORKER.set, self)
        batches = BatchDispatch(dispatch)
        self._functions: dict[str, Callable[..., Any]] = {
            RUN_BATCH: batches.run_batch,
            DISPATCH: dispatch.run_handler,
            FORWARD: forward_signals,
            SET_PRIORITY: set_own_priority,
            MARK_SERIAL: mark_serial_run,
        }

    @property
    def polls(self) -> bool:
        """Whether the worker polls for tasks: it is alive, not stopped and not draining."""
        return self.is_alive and not self.is_draining and self.loop.time() >= self.stalled_until

    async def wait_while_stalled(self) -> None:
        """Wait while the process is stopped, or for ever if it is dead."""
        while self.is_alive and (left := self.stalled_until - self.loop.time()) > 0:  # noqa: ASYNC110 — it may change meanwhile
            await asyncio.sleep(left)
        if not self.is_alive:
            await self.loop.create_future()

    def kill(self) -> None:
        """Die at once: from now on this process has no effect."""
        self.is_alive = False
        for task in list(self._running):
            task.cancel()

    def drain(self) -> None:
        """End as `dormice worker` does on a signal: notify running activities, then cancel them after a while."""
        self.is_draining = True
        for task, environment in list(self._running.items()):
            environment.worker_shutdown()
            self.loop.call_later(1.0, task.cancel)
        self.loop.call_later(10.0, self.kill)

    def evict(self) -> None:
        """Drop all runs without running local activities from the cache."""
        for run_id in [run_id for run_id, replica in self.cache.items() if not replica.is_busy]:
            del self.cache[run_id]

    def send(self, act: Callable[[], None]) -> None:
        """Call `act` after a network delay, once the process is not stopped; never if it is dead by then."""

        def arrive() -> None:
            if self.is_alive and (left := self.stalled_until - self.loop.time()) > 0:
                self.loop.call_later(left + 1e-3, arrive)
            elif self.is_alive:
                act()

        self.loop.call_later(self.rng.uniform(0, NETWORK_SECONDS), arrive)

    def begin_task(self, task: WorkflowTask) -> None:
        """Execute a workflow task, with the cached run or by replaying its history."""
        self.send(lambda: _TaskAtWork(self, task).begin())

    def begin_activity(self, activity: ActivityTask) -> None:
        """Execute one attempt of an ordinary activity."""
        attempt, request = activity.attempt, activity.request
        environment = ActivityEnvironment(cast("Client", self.client))
        environment.on_heartbeat = lambda *details: self.send(lambda: beat(list(details)))

        def beat(details: list[Any]) -> None:
            if self.faults.strikes("heartbeat lost"):
                return
            content = [DATA_CONVERTER.payload_converter.from_payloads([d.payload])[0] for d in details]
            if not activity.beat(attempt, content):
                environment.cancel()

        def report(result: Any, failure: Any) -> None:
            if self.faults.strikes("activity answer lost"):
                return
            activity.end(attempt, result) if failure is None else activity.fail(attempt, failure)

        info = replace(
            environment.info,
            workflow_id=activity.run.workflow_id,
            workflow_run_id=activity.run.run_id,
            attempt=attempt,
            heartbeat_details=activity.details,
        )
        environment.info = info

        def run() -> None:
            self.run_activity(request, environment, lambda: activity.is_current(attempt), report)

        self.send(run)

    def run_activity(
        self,
        request: ScheduleActivity | ScheduleLocalActivity,
        environment: ActivityEnvironment,
        is_current: Callable[[], bool],
        report: Callable[[Any, Any], None],
    ) -> asyncio.Task[Any]:
        """Run an activity; `report` gets its result or its failure."""
        arguments = DATA_CONVERTER.payload_converter.from_payloads(list(request.arguments))
        function = self._functions[request.activity_type]
        context = self._context.copy()
        context.run(IS_CURRENT.set, is_current)
        task = self.loop.create_task(self._call(environment, function, arguments, report), context=context)
        self._running[task] = environment
        task.add_done_callback(self._running.pop)
        return task

    async def _call(self, environment: ActivityEnvironment, function: Any, arguments: Any, report: Any) -> None:
        try:
            result = await environment.run(function, *arguments)
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 — like the SDK, for any error of an activity
            self.send(lambda exc=exc: report(None, activation.application_failure(exc)))
        else:
            (payload,) = DATA_CONVERTER.payload_converter.to_payloads([result])
            self.send(lambda: report(activation.completed(payload), None))


class _TaskAtWork:
    """A workflow task that a worker executes, with the local activities that keep it open."""

    def __init__(self, worker: Worker, task: WorkflowTask) -> None:
        self._worker = worker
        self._task = task
        self._replica = Replica(task.run)
        self._timer: asyncio.TimerHandle | None = None
        self._calls: dict[int, asyncio.Task[Any]] = {}
        self._is_reporting = False
        self.is_done = False
        self._resolved: list[tuple[int, Any, float]] = []
        """Results that came while the task's completion was being sent; the next task delivers them."""

    def begin(self) -> None:
        """Execute the task."""
        before = self._worker.tasks.get(self._task.run.run_id)
        if before is not None and not before.is_done:  # the earlier task timed out, so its results do not count
            before.forget()
        self._worker.tasks[self._task.run.run_id] = self
        cached = self._worker.cache.get(self._task.run.run_id)
        if cached is not None and cached.position <= len(self._task.history) and not cached.is_closed:
            self._replica = cached
        self._worker.cache[self._task.run.run_id] = self._replica
        self._go_on()

    def _go_on(self) -> None:
        self._task.run.view = None
        try:
            self._replica.feed(self._task.history)
        except (WorkflowTaskFailure, NotDeterministic) as exc:
            self._give_up(exc)
            return
        keep_for = self._task.run.task_seconds * HEARTBEAT_SHARE
        self._timer = self._worker.loop.call_later(keep_for, self._keep)
        self._advance()

    def _give_up(self, exc: Exception) -> None:
        self.forget()
        self._worker.server.fail(self._task, exc)

    def _advance(self) -> None:
        for activity in self._replica.to_begin():
            self._begin_local(activity, attempt=1, delay=0.0)
        if not self._replica.is_busy:
            self._complete(forces_task=False)

    def _complete(self, *, forces_task: bool) -> None:
        self._is_reporting = True
        if self._timer is not None:
            self._timer.cancel()
        commands = self._replica.take_commands()
        self._worker.send(lambda: self._report(commands, forces_task))

    def _report(self, commands: list[Any], forces_task: bool) -> None:  # noqa: FBT001 — one private caller
        faults = self._worker.faults
        if faults.strikes("task answer lost"):
            self.forget()
            return
        server = self._worker.server
        counts, following = server.complete(self._task, commands, self._replica, forces_task=forces_task)
        if not counts or not self._task.run.is_open or faults.strikes("task answer unheard"):
            self.forget()
        elif following is not None:
            self._task, self._is_reporting = following, False
            for seq, result, seconds in self._resolved:
                self._replica.resolve(seq, result, seconds, is_delivered=False)
            self._resolved.clear()
            self._go_on()
        else:
            self.is_done = True

    def _keep(self) -> None:
        if self._worker.is_alive and self._replica.is_busy and not self._is_reporting:
            self._complete(forces_task=True)

    def forget(self) -> None:
        """Drop the task, its run from the cache, and the results of its activities."""
        self.is_done = True
        if self._worker.cache.get(self._task.run.run_id) is self._replica:
            del self._worker.cache[self._task.run.run_id]
        for call in self._calls.values():
            call.cancel()

    def _begin_local(self, activity: LocalActivity, attempt: int, delay: float) -> None:
        worker, request = self._worker, activity.request
        environment = ActivityEnvironment(cast("Client", worker.client))
        environment.info = replace(
            environment.info,
            workflow_id=self._task.run.workflow_id,
            workflow_run_id=self._task.run.run_id,
            attempt=attempt,
            is_local=True,
            task_queue=self._task.run.task_queue,
        )
        is_over = False
        begun_at = worker.loop.time()

        def report(result: Any, failure: Any) -> None:
            nonlocal is_over
            if is_over or not worker.is_alive:
                return
            if failure is None and worker.faults.strikes("batch blocked"):
                return  # the activity times out although its handlers were called
            is_over = True
            if failure is not None and request.retry_policy.maximum_attempts != 1:
                self._begin_local(activity, attempt + 1, 1.0)
                return
            resolved = result if failure is None else activation.failed(failure)
            self._resolve(activity, resolved, worker.loop.time() - begun_at)

        def begin() -> None:
            if not worker.is_alive:
                return
            seconds = request.start_to_close_timeout.ToTimedelta().total_seconds()
            call = worker.run_activity(request, environment, lambda: not self._task.is_over, report)
            self._calls[request.seq] = call

            def expire() -> None:
                if not is_over:
                    kind = TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE
                    worker.send(lambda: report(None, activation.timeout_failure(kind, is_local=True, activity="")))
                    environment.cancel()

            worker.loop.call_later(seconds, expire)

        worker.loop.call_later(delay, begin)

    def _resolve(self, activity: LocalActivity, result: Any, seconds: float) -> None:
        if self._worker.cache.get(self._task.run.run_id) is not self._replica:
            return  # the task was dropped meanwhile, with the results of its activities
        if self._is_reporting:
            self._resolved.append((activity.request.seq, result, seconds))
            return
        is_split = self._worker.faults.strikes("result split from its task")
        try:
            self._replica.resolve(activity.request.seq, result, seconds, is_delivered=not is_split)
        except WorkflowTaskFailure as exc:
            self._give_up(exc)
            return
        if is_split:
            self._complete(forces_task=True)
        else:
            self._advance()
