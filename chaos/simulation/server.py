"""The server: a model of what Temporal promises about workflows, signals, timers and tasks."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from temporalio.api.common.v1 import Payload

from chaos.simulation.activities import ActivityTask
from chaos.simulation.faults import Faults
from chaos.simulation.history import CLOSING, Command, Event, What
from chaos.simulation.replica import Replica
from chaos.simulation.requests import HandlerRequests
from chaos.simulation.virtual_time import EPOCH
from shared.settings import Settings

MATCHING_SECONDS = 0.02
LONG_WAIT_SECONDS = 90.0
EVENT_BYTES = 150
CALLS_MARK = "-calls-"  # in the name of a task queue that belongs to one worker


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
    unheard: list[ActivityTask] = field(default_factory=list[ActivityTask])
    """Activities that have ended since the last completed task, so that its workflow may not know of them yet."""
    requests: set[str] = field(default_factory=set[str])
    sticky: TaskTaker | None = None
    view: Replica | None = None
    """The replica after the last completed task; None once it may have advanced."""
    result: Any = None


class Server:
    """All runs; calls `watch` after each completed task, and `note_failure` when workflow code fails a task."""

    def __init__(
        self,
        rng: random.Random,
        faults: Faults,
        watch: Callable[[Run, Replica], None],
        note_failure: Callable[[Run, Exception], None],
    ) -> None:
        self._rng = rng
        self.faults = faults
        self._watch = watch
        self._note_failure = note_failure
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self.workers: list[TaskTaker] = []
        self.current: dict[str, Run] = {}
        self.requests = HandlerRequests()
        self.task_seconds = Settings().workflow_task_timeout.total_seconds()
        self.suggest_after = math.inf
        """Number of events after which the server suggests continue-as-new."""

    @property
    def now(self) -> float:
        """The server's clock, in seconds since 1970."""
        return EPOCH + self._loop.time()

    def signal(self, workflow_id: str, name: str, arguments: Sequence[Payload], request: str = "") -> bool:
        """Deliver a signal; gives whether there was an open run for it."""
        run = self.current.get(workflow_id)
        if run is None or not run.is_open:
            return False
        if request and request in run.requests:
            return True
        run.requests.add(request)
        self._note(run, Event(What.SIGNALED, self.now, content=(name, list(arguments))))
        return True

    def start(self, workflow_type: str, workflow_id: str, task_queue: str, arguments: Sequence[Payload]) -> bool:
        """Start a workflow unless one is open under its id."""
        run = self.current.get(workflow_id)
        if run is not None and run.is_open:
            return False
        self._begin_run(workflow_type, workflow_id, task_queue, arguments, "")
        return True

    def complete(self, task: WorkflowTask, commands: Sequence[Command], replica: Replica) -> bool:
        """Complete a workflow task; gives whether it counts: if not, the worker must drop the run from its cache."""
        run = task.run
        if task.is_over:
            self.faults.hits["late answer refused"] += 1
            return False

        self._end_task(task)
        if run.buffered and any(command.what in CLOSING for command in commands):
            self.faults.hits["end refused for a signal"] += 1
            self._fail(run)
            return False

        run.attempt = 1
        run.unheard.clear()
        self._append(run, Event(What.TASK_COMPLETED, self.now))

        for command in commands:
            self._obey(run, command)

        run.view = replica
        has_news = bool(run.buffered)
        self._flush(run)
        self._watch(run, replica)
        if has_news:
            self._schedule(run)
        return True

    def fail(self, task: WorkflowTask, exc: Exception) -> None:
        """Record that workflow code failed a task."""
        self._note_failure(task.run, exc)
        if not task.is_over:
            self._end_task(task)
            self._fail(task.run)

    def end_activity(self, activity: ActivityTask, resolution: Any) -> None:
        """Record the result of an activity."""
        run = activity.run
        if run.activities.pop(activity.seq, None) is not None and run.is_open:
            run.unheard.append(activity)
            self._note(run, Event(What.ACTIVITY_ENDED, self.now, activity.seq, resolution))

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
        is_long = self.faults.strikes("task waits long")
        longest = LONG_WAIT_SECONDS if is_long else MATCHING_SECONDS
        return self._rng.uniform(0, longest), is_long

    def _begin_run(self, workflow_type: str, workflow_id: str, queue: str, arguments: Any, before: str) -> None:
        self._count += 1
        run = Run(workflow_id, workflow_type, queue, f"run-{self._count}", self.task_seconds, before)
        self.current[workflow_id] = run
        self._append(run, Event(What.STARTED, self.now, content=list(arguments)))
        self._schedule(run)

    def _note(self, run: Run, event: Event) -> None:
        if run.task is not None:  # events during a task are buffered until its end
            run.buffered.append(event)
        else:
            self._append(run, event)
            self._schedule(run)

    def _append(self, run: Run, event: Event) -> None:
        run.history.append(event)
        run.size += EVENT_BYTES
        if event.what is What.SIGNALED:
            run.size += sum(len(payload.data) for payload in event.content[1])

    def _flush(self, run: Run) -> None:
        for event in run.buffered:
            self._append(run, event)
        run.buffered.clear()

    def _schedule(self, run: Run) -> None:
        if run.is_task_scheduled or not run.is_open or run.task is not None:
            return
        run.is_task_scheduled = True
        self._append(run, Event(What.TASK_SCHEDULED, self.now))
        wait, _ = self.draw_wait()
        delay = wait + (0.0 if run.attempt == 1 else min(2.0**run.attempt, 60.0) - 2)
        self._loop.call_later(delay, self._hand_out, run)

    def _hand_out(self, run: Run) -> None:
        worker = self.pick_worker(run.sticky)
        if worker is None:
            self._loop.call_later(1.0, self._hand_out, run)
            return
        run.is_task_scheduled = False
        run.sticky = worker
        worker.begin_task(self._begin_task(run))

    def _begin_task(self, run: Run) -> WorkflowTask:
        is_suggested = len(run.history) > self.suggest_after
        self._append(run, Event(What.TASK_BEGUN, self.now, content=(run.size, is_suggested)))
        run.task = task = WorkflowTask(run, list(run.history))
        self._loop.call_later(run.task_seconds, self._time_out, task)
        return task

    def _time_out(self, task: WorkflowTask) -> None:
        if not task.is_over:
            self.faults.hits["task timed out"] += 1
            for activity in task.run.unheard:
                activity.note_hit()  # its worker may end meanwhile, and the run before it has used the answer
            self._end_task(task)
            self._fail(task.run)

    def _end_task(self, task: WorkflowTask) -> None:
        task.is_over = True
        task.run.task = None

    def _fail(self, run: Run) -> None:
        run.attempt += 1
        run.sticky = run.view = None
        self._append(run, Event(What.TASK_FAILED, self.now))
        self._flush(run)
        self._schedule(run)

    def _obey(self, run: Run, command: Command) -> None:
        event = Event(command.what, self.now, command.seq, command.content)
        self._append(run, event)

        match command.what:
            case What.TIMER_STARTED:
                run.timers[command.seq] = self._loop.call_later(command.content, self._fire, run, command.seq)
            case What.TIMER_CANCELED:
                run.timers.pop(command.seq).cancel() if command.seq in run.timers else None
                run.buffered = [e for e in run.buffered if (e.what, e.seq) != (What.TIMER_FIRED, command.seq)]
            case What.ACTIVITY_SCHEDULED:
                run.activities[command.seq] = ActivityTask(self, run, command.content)
            case What.CONTINUED:
                self._close(run)
                queue = command.content.task_queue or run.task_queue
                self._begin_run(run.workflow_type, run.workflow_id, queue, command.content.arguments, run.run_id)
            case What.COMPLETED:
                self._close(run)
                run.result = command.content.result
            case _:
                pass

    def _close(self, run: Run) -> None:
        run.is_open = False
        for timer in run.timers.values():
            timer.cancel()
        run.activities.clear()  # nobody waits for them any more, and their workers learn it from a heartbeat

    def _fire(self, run: Run, seq: int) -> None:
        run.timers.pop(seq, None)
        if run.is_open:
            self._note(run, Event(What.TIMER_FIRED, self.now, seq))
