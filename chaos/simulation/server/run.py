"""Runs of workflows as the server keeps them, with the tasks that workers have, and its view of a worker."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

from chaos.simulation.replica.history import Event, What
from chaos.simulation.replica.replica import Replica
from chaos.simulation.server.activities import ActivityTask

EVENT_BYTES = 150


class TaskTaker(Protocol):
    """The server's view of a worker."""

    name: str

    @property
    def polls(self) -> bool:
        """Whether the worker polls for tasks."""
        ...

    @property
    def polls_calls(self) -> bool:
        """Whether the worker polls on its own queue."""
        ...

    @property
    def calls_queue(self) -> str:
        """The task queue of this worker alone."""
        ...

    def begin_task(self, task: "WorkflowTask") -> None:
        """Begin a workflow task."""
        ...

    def begin_activity(self, activity: ActivityTask) -> None:
        """Begin one attempt of an activity."""
        ...


@dataclass(eq=False, slots=True)
class WorkflowTask:
    """A workflow task that a worker has; responses after its end are refused."""

    run: "Run"
    history: list[Event]
    is_over: bool = False

    def end(self) -> None:
        """End the task, so that its run can have another one."""
        self.is_over = True
        self.run.task = None


@dataclass(eq=False, slots=True)
class Run:
    """One run of a workflow."""

    workflow_id: str
    workflow_type: str
    task_queue: str
    run_id: str
    task_seconds: float
    continued_from: str
    history: list[Event] = field(default_factory=list[Event])
    buffered: list[Event] = field(default_factory=list[Event])
    task: WorkflowTask | None = None
    is_task_scheduled: bool = False
    attempt: int = 1
    is_open: bool = True
    size: int = 0
    timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict[int, asyncio.TimerHandle])
    activities: dict[int, ActivityTask] = field(default_factory=dict[int, ActivityTask])
    unobserved: list[ActivityTask] = field(default_factory=list[ActivityTask])
    """Activities that have ended since the last completed task, so that its workflow may not know of them yet."""
    requests: set[str] = field(default_factory=set[str])
    sticky: TaskTaker | None = None
    view: Replica | None = None
    """The replica after the last completed task; None once it may have advanced."""
    result: Any = None

    def append(self, event: Event) -> None:
        """Write an event into the history."""
        self.history.append(event)
        self.size += EVENT_BYTES
        if event.what is What.SIGNALED:
            self.size += sum(len(payload.data) for payload in event.content[1])

    def flush(self) -> None:
        """Write the events into the history that came during a task."""
        for event in self.buffered:
            self.append(event)
        self.buffered.clear()

    def cancel_timer(self, seq: int) -> None:
        """Cancel a timer, also if it has fired since the last task."""
        timer = self.timers.pop(seq, None)
        if timer is not None:
            timer.cancel()
        self.buffered = [event for event in self.buffered if (event.what, event.seq) != (What.TIMER_FIRED, seq)]

    def close(self) -> None:
        """End the run."""
        self.is_open = False
        for timer in self.timers.values():
            timer.cancel()
        self.activities.clear()  # nobody waits for them any more, and their workers learn it from a heartbeat
