"""The part of a worker that executes workflow tasks, with the runs that are in its cache."""

from typing import Any

from chaos.simulation.faults import Faults
from chaos.simulation.replica.activation import WorkflowTaskFailure
from chaos.simulation.replica.replica import NotDeterministic, Replica
from chaos.simulation.server.run import Run, WorkflowTask
from chaos.simulation.server.server import Server
from chaos.simulation.worker.process import WorkerProcess


class WorkflowWorker:
    """The workflow tasks of one worker process."""

    def __init__(self, server: Server, process: WorkerProcess, cached: int) -> None:
        self._server = server
        self._process = process
        self._cache = _RunCache(server.faults, cached)
        self._tasks: dict[str, _TaskAtWork] = {}
        """The last task of each run."""

    def begin(self, task: WorkflowTask) -> None:
        """Execute a workflow task, with the cached run or by replaying its history."""
        self._process.send(lambda: self._execute(task))

    def evict(self) -> None:
        """Drop all runs from the cache."""
        self._cache.clear()

    def _execute(self, task: WorkflowTask) -> None:
        run_id = task.run.run_id
        before = self._tasks.get(run_id)
        if before is not None and not before.is_done:  # the earlier task timed out, so its commands do not count
            before.forget()

        self._tasks[run_id] = _TaskAtWork(self._server, self._process, self._cache, task)
        self._tasks[run_id].execute()


class _RunCache:
    """The runs that a process has in memory, at most so many."""

    def __init__(self, faults: Faults, size: int) -> None:
        self._faults = faults
        self._size = size
        self._replicas: dict[str, Replica] = {}
        """Runs by id, the least recently used first."""

    def find(self, task: WorkflowTask) -> Replica:
        """Give the cached run of a task, or one that has to replay its history; a full cache drops the oldest."""
        run_id = task.run.run_id
        replica = self._replicas.pop(run_id, None)
        if replica is None or replica.position > len(task.history) or replica.is_closed:
            replica = Replica(task.run)

        self._replicas[run_id] = replica
        while len(self._replicas) > self._size:
            self._faults.hits["dropped from a full cache"] += 1
            del self._replicas[next(iter(self._replicas))]

        return replica

    def drop(self, run_id: str, replica: Replica) -> None:
        """Drop a replica of a run, unless another one has taken its place."""
        if self._replicas.get(run_id) is replica:
            del self._replicas[run_id]

    def clear(self) -> None:
        """Drop all runs."""
        self._replicas.clear()


class _TaskAtWork:
    """A workflow task that a worker executes."""

    def __init__(self, server: Server, process: WorkerProcess, cache: _RunCache, task: WorkflowTask) -> None:
        self._server = server
        self._process = process
        self._cache = cache
        self._task = task
        self._replica = cache.find(task)
        self.is_done = False

    @property
    def _run(self) -> Run:
        return self._task.run

    def execute(self) -> None:
        """Execute the task, and send its commands."""
        self._run.view = None
        try:
            self._replica.feed(self._task.history)
        except (WorkflowTaskFailure, NotDeterministic) as exc:
            self.forget()
            self._server.fail(self._task, exc)
            return

        commands = self._replica.take_commands()
        self._process.send(lambda: self._report(commands))

    def forget(self) -> None:
        """Drop the task, and its run from the cache."""
        self.is_done = True
        self._cache.drop(self._run.run_id, self._replica)

    def _report(self, commands: list[Any]) -> None:
        faults = self._server.faults
        if faults.strikes("task answer lost"):
            self.forget()
            return

        counts = self._server.complete(self._task, commands, self._replica)
        if not counts or not self._run.is_open or faults.strikes("task answer unheard"):
            self.forget()
        self.is_done = True
