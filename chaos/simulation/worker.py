"""Workers: model processes with a cache of runs that execute workflow tasks and activities with dormice's own code."""

import asyncio
import contextvars
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import DISPATCH, Dispatch
from activities.server_calls import FORWARD, SET_PRIORITY, forward_signals, set_own_priority
from chaos.simulation import activation
from chaos.simulation.activation import WorkflowTaskFailure
from chaos.simulation.replica import NotDeterministic, Replica
from chaos.simulation.server.activities import ActivityTask
from chaos.simulation.server.run import Run, WorkflowTask
from chaos.simulation.server.server import Server
from chaos.simulation.virtual_time import SKEW
from shared.packs.names import AWAIT_CALLS, RUN_BATCH
from shared.temporal.converter import DATA_CONVERTER

NETWORK_SECONDS = 0.01
KILL_SECONDS = 5.0
"""How long after its drain time a process is killed."""

WORKER: contextvars.ContextVar["Worker"] = contextvars.ContextVar("WORKER")


class Worker:
    """One worker process, from its start to its death."""

    def __init__(
        self, name: str, server: Server, dispatch: Dispatch, client: Any, *, seed: str, cached: int, drain: float
    ) -> None:
        self.name = name
        self.server = server
        self.faults = server.faults
        self.rng = random.Random(f"{seed}|{name}")
        self.is_alive = True
        self.is_closing = False
        """Whether it polls no more on the lanes' queues."""
        self.is_closed = False
        """Whether it polls no more on its own queue either."""
        self.stalled_until = 0.0
        self.loop = asyncio.get_running_loop()
        self.cache: dict[str, Replica] = {}
        """Runs by id, the least recently used first."""
        self.tasks: dict[str, _TaskAtWork] = {}
        self.client: Any = client
        self._hit_at = -1.0
        self._cached = cached
        self._drain = drain
        self._environments: list[ActivityEnvironment] = []
        self._running: dict[asyncio.Task[Any], ActivityEnvironment] = {}
        self._arriving = 0
        """Number of activities that the server has handed out to this process and that have not begun here."""
        self._context = contextvars.copy_context()
        self._context.run(SKEW.set, self.rng.uniform(-self.faults.skew, self.faults.skew))
        self._context.run(WORKER.set, self)
        self._batches = BatchDispatch(dispatch)
        self._functions: dict[str, Callable[..., Any]] = {
            RUN_BATCH: self._batches.run_batch,
            AWAIT_CALLS: self._batches.await_calls,
            DISPATCH: dispatch.run_handler,
            FORWARD: forward_signals,
            SET_PRIORITY: set_own_priority,
        }

    @property
    def polls(self) -> bool:
        """Whether the worker polls for tasks: it is alive, and neither stopped nor closing."""
        return self._works and not self.is_closing

    @property
    def polls_calls(self) -> bool:
        """Whether the worker polls on its own queue."""
        return self._works and not self.is_closed

    @property
    def _has_activities(self) -> bool:
        """Whether an activity runs here, or is on its way; the SDK waits for both when it ends."""
        return bool(self._running or self._arriving)

    @property
    def _works(self) -> bool:
        return self.is_alive and self.loop.time() >= self.stalled_until

    @property
    def calls_queue(self) -> str:
        """The task queue of this process alone, on which packs ask for its calls in flight."""
        return self._batches.queue

    def was_hit_since(self, moment: float) -> bool:
        """Return whether the process was killed, stopped or at the end of its drain time after a moment."""
        return max(self._hit_at, self.stalled_until) >= moment

    async def wait_while_stalled(self) -> None:
        """Wait while the process is stopped, or for ever if it is dead."""
        while self.is_alive and (left := self.stalled_until - self.loop.time()) > 0:  # noqa: ASYNC110 — it may change meanwhile
            await asyncio.sleep(left)
        if not self.is_alive:
            await self.loop.create_future()

    def stall(self, seconds: float) -> None:
        """Stop for a while."""
        self.stalled_until = self.loop.time() + seconds

    def resume(self) -> None:
        """Go on at once, if it is stopped."""
        if self.stalled_until > self.loop.time():
            self.stalled_until = self._hit_at = self.loop.time()

    def kill(self) -> None:
        """Die at once: from now on this process has no effect."""
        self.is_alive = False
        self._hit_at = self.loop.time()
        for task in list(self._running):
            task.cancel()

    def drain(self) -> None:
        """End as `dormice worker` does on a signal; what works when the drain time is over is handed back."""
        self.loop.create_task(self._end(), context=self._context.copy())

    async def _end(self) -> None:
        await self._batches.drain()
        self.is_closing = True
        for environment in self._environments:
            environment.worker_shutdown()

        over_at = self.loop.time() + self._drain
        await self._batches.finish(self._drain)

        while self._has_activities and self.loop.time() < over_at:  # noqa: ASYNC110 — they end by themselves
            await asyncio.sleep(0.1)

        self.is_closed = True
        if self._has_activities or self._batches.has_unheard_calls:
            self._hit_at = self.loop.time()

        for environment in self._running.values():
            environment.cancel(ActivityCancellationDetails(worker_shutdown=True))

        await asyncio.sleep(KILL_SECONDS)
        self.is_alive = False

    def evict(self) -> None:
        """Drop all runs from the cache."""
        self.cache.clear()

    def find_replica(self, task: WorkflowTask) -> Replica:
        """Give the cached run of a task, or one that has to replay its history; a full cache drops the oldest."""
        run_id = task.run.run_id
        replica = self.cache.pop(run_id, None)
        if replica is None or replica.position > len(task.history) or replica.is_closed:
            replica = Replica(task.run)
        self.cache[run_id] = replica
        while len(self.cache) > self._cached:
            self.faults.hits["dropped from a full cache"] += 1
            del self.cache[next(iter(self.cache))]

        return replica

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
        """Execute one attempt of an activity."""
        attempt = activity.attempt
        environment = ActivityEnvironment(cast("Client", self.client))
        environment.on_heartbeat = lambda *_: self.send(beat)

        def beat() -> None:
            if self.faults.strikes("heartbeat lost"):
                activity.note_hit()
            elif not activity.beat(attempt):
                environment.cancel(ActivityCancellationDetails(not_found=True))

        def report(result: Any, failure: Any) -> None:
            if self.faults.strikes("activity answer lost"):
                activity.note_hit()
            elif failure is None:
                activity.end(attempt, result)
            else:
                activity.fail(attempt, failure)

        environment.info = replace(
            environment.info,
            workflow_id=activity.run.workflow_id,
            workflow_run_id=activity.run.run_id,
            attempt=attempt,
        )
        self._arriving += 1
        self.send(lambda: self._run_activity(activity, environment, report))

    def _run_activity(
        self, activity: ActivityTask, environment: ActivityEnvironment, report: Callable[[Any, Any], None]
    ) -> None:
        """Run an activity; `report` gets its result or its failure."""
        self._arriving -= 1
        arguments = DATA_CONVERTER.payload_converter.from_payloads(list(activity.scheduled.arguments))
        function = self._functions[activity.scheduled.activity_type]
        self._environments.append(environment)
        if self.is_closing:
            environment.worker_shutdown()

        call = self._call(environment, function, arguments, report)
        task = self.loop.create_task(call, context=self._context.copy())
        self._running[task] = environment
        task.add_done_callback(self._running.pop)

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
    """A workflow task that a worker executes."""

    def __init__(self, worker: Worker, task: WorkflowTask) -> None:
        self._worker = worker
        self._task = task
        self._replica = Replica(task.run)
        self.is_done = False

    @property
    def _run(self) -> Run:
        return self._task.run

    def begin(self) -> None:
        """Execute the task."""
        before = self._worker.tasks.get(self._run.run_id)
        if before is not None and not before.is_done:  # the earlier task timed out, so its commands do not count
            before.forget()

        self._worker.tasks[self._run.run_id] = self
        self._replica = self._worker.find_replica(self._task)

        self._run.view = None
        try:
            self._replica.feed(self._task.history)
        except (WorkflowTaskFailure, NotDeterministic) as exc:
            self.forget()
            self._worker.server.fail(self._task, exc)
            return

        commands = self._replica.take_commands()
        self._worker.send(lambda: self._report(commands))

    def _report(self, commands: list[Any]) -> None:
        faults = self._worker.faults
        if faults.strikes("task answer lost"):
            self.forget()
            return
        counts = self._worker.server.complete(self._task, commands, self._replica)
        if not counts or not self._run.is_open or faults.strikes("task answer unheard"):
            self.forget()
        self.is_done = True

    def forget(self) -> None:
        """Drop the task, and its run from the cache."""
        self.is_done = True
        if self._worker.cache.get(self._run.run_id) is self._replica:
            del self._worker.cache[self._run.run_id]
