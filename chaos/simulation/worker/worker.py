"""Workers: model processes with a cache of runs that execute workflow tasks and activities with dormice's own code."""

import asyncio
import contextvars
import random
from collections.abc import Callable, Mapping
from typing import Any

from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import DISPATCH, Dispatch
from activities.server_calls import FORWARD, SET_PRIORITY, forward_signals, set_own_priority
from chaos.simulation.server.activities import ActivityTask
from chaos.simulation.server.run import WorkflowTask
from chaos.simulation.server.server import Server
from chaos.simulation.virtual_time import SKEW
from chaos.simulation.worker.activity_worker import ActivityWorker
from chaos.simulation.worker.process import WorkerProcess
from chaos.simulation.worker.workflow_worker import WorkflowWorker
from shared.packs.names import AWAIT_CALLS, RUN_BATCH

KILL_SECONDS = 5.0
"""How long after its drain time a process is killed."""

WORKER: contextvars.ContextVar["Worker"] = contextvars.ContextVar("WORKER")


class Worker:
    """One worker process, from its start to its death."""

    def __init__(
        self, name: str, server: Server, dispatch: Dispatch, client: Any, *, seed: str, cached: int, drain: float
    ) -> None:
        rng = random.Random(f"{seed}|{name}")
        self.name = name
        self.server = server
        self.is_closed = False
        """Whether it polls no more on its own queue either."""
        self._loop = asyncio.get_running_loop()
        self._drain = drain
        self._context = contextvars.copy_context()
        self._context.run(SKEW.set, rng.uniform(-server.faults.skew, server.faults.skew))
        self._context.run(WORKER.set, self)
        self._batches = BatchDispatch(dispatch)

        functions = _name_functions(dispatch, self._batches)
        self.process = WorkerProcess(rng)
        self.workflows = WorkflowWorker(server, self.process, cached)
        self._activities = ActivityWorker(self.process, server.faults, client, functions, self._context)

    @property
    def polls(self) -> bool:
        """Whether the worker polls on the lanes' queues: it is alive, and neither stopped nor closing."""
        return self.process.is_working and not self._activities.is_closing

    @property
    def polls_calls(self) -> bool:
        """Whether the worker polls on its own queue."""
        return self.process.is_working and not self.is_closed

    @property
    def calls_queue(self) -> str:
        """The task queue of this process alone, on which packs ask for its calls in flight."""
        return self._batches.queue

    def begin_task(self, task: WorkflowTask) -> None:
        """Execute a workflow task, with the cached run or by replaying its history."""
        self.workflows.begin(task)

    def begin_activity(self, activity: ActivityTask) -> None:
        """Execute one attempt of an activity."""
        self._activities.begin(activity)

    def kill(self) -> None:
        """Die at once: from now on this process has no effect."""
        self.process.end()
        self.process.note_hit()
        self._activities.kill()

    def drain(self) -> None:
        """End as `dormice worker` does on a signal; what works when the drain time is over is handed back."""
        self._loop.create_task(self._end(), context=self._context.copy())

    async def _end(self) -> None:
        await self._batches.drain()
        self._activities.close()

        over_at = self._loop.time() + self._drain
        await self._batches.finish(self._drain)
        while self._activities.has_activities and self._loop.time() < over_at:  # noqa: ASYNC110 — they end by themselves
            await asyncio.sleep(0.1)

        self.is_closed = True
        if self._activities.has_activities or self._batches.has_unawaited_calls:
            self.process.note_hit()

        self._activities.hand_back()
        await asyncio.sleep(KILL_SECONDS)
        self.process.end()


def _name_functions(dispatch: Dispatch, batches: BatchDispatch) -> Mapping[str, Callable[..., Any]]:
    """Give the activities of a worker by their names."""
    return {
        RUN_BATCH: batches.run_batch,
        AWAIT_CALLS: batches.await_calls,
        DISPATCH: dispatch.run_handler,
        FORWARD: forward_signals,
        SET_PRIORITY: set_own_priority,
    }
