"""Matching: which worker gets a task, and how long the task waits for it, as Temporal's service of that name."""

import random

from chaos.simulation.faults import Faults
from chaos.simulation.server.run import TaskTaker

MATCHING_SECONDS = 0.02
LONG_WAIT_SECONDS = 90.0
CALLS_MARK = "-calls-"  # in the name of a task queue that belongs to one worker


class Matching:
    """The workers that poll, from which each task gets one."""

    def __init__(self, rng: random.Random, faults: Faults) -> None:
        self._rng = rng
        self._faults = faults
        self.workers: list[TaskTaker] = []

    def pick_worker(self, liked: TaskTaker | None = None, queue: str = "") -> TaskTaker | None:
        """Pick a worker that polls for tasks, `liked` if it does; a worker's own queue is served by nobody else."""
        if CALLS_MARK in queue:
            ready = [worker for worker in self.workers if worker.polls_calls and worker.calls_queue == queue]
        else:
            ready = [worker for worker in self.workers if worker.polls]
        if liked in ready:
            return liked
        return self._rng.choice(ready) if ready else None

    def draw_wait(self) -> tuple[float, bool]:
        """Draw how many seconds a task waits for its worker, and whether a fault makes it wait long."""
        is_long = self._faults.strikes("task waits long")
        longest = LONG_WAIT_SECONDS if is_long else MATCHING_SECONDS
        return self._rng.uniform(0, longest), is_long
