"""The server: a model of what Temporal promises about workflows, signals, timers and tasks."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload

from chaos.simulation.faults import Faults
from chaos.simulation.replica.history import CLOSING, Command, Event, What
from chaos.simulation.replica.replica import Replica
from chaos.simulation.server.activities import ActivityTask
from chaos.simulation.server.matching import Matching
from chaos.simulation.server.requests import HandlerRequests
from chaos.simulation.server.run import Run, WorkflowTask
from chaos.simulation.virtual_time import EPOCH
from shared.settings import Settings


class Server:
    """All runs; calls `watch` after each completed task, and `note_failure` when workflow code fails a task."""

    def __init__(
        self,
        rng: random.Random,
        faults: Faults,
        watch: Callable[[Run, Replica], None],
        note_failure: Callable[[Run, Exception], None],
    ) -> None:
        self.faults = faults
        self._watch = watch
        self._note_failure = note_failure
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self.matching = Matching(rng, faults)
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

        task.end()
        if run.buffered and any(command.what in CLOSING for command in commands):
            self.faults.hits["end refused for a signal"] += 1
            self._fail(run)
            return False

        run.attempt = 1
        run.unobserved.clear()
        run.append(Event(What.TASK_COMPLETED, self.now))

        for command in commands:
            self._obey(run, command)

        run.view = replica
        has_news = bool(run.buffered)
        run.flush()
        self._watch(run, replica)
        if has_news:
            self._schedule(run)
        return True

    def fail(self, task: WorkflowTask, exc: Exception) -> None:
        """Record that workflow code failed a task."""
        self._note_failure(task.run, exc)
        if not task.is_over:
            task.end()
            self._fail(task.run)

    def end_activity(self, activity: ActivityTask, resolution: Any) -> None:
        """Record the result of an activity."""
        run = activity.run
        if run.activities.pop(activity.seq, None) is not None and run.is_open:
            run.unobserved.append(activity)
            self._note(run, Event(What.ACTIVITY_ENDED, self.now, activity.seq, resolution))

    def _begin_run(self, workflow_type: str, workflow_id: str, queue: str, arguments: Any, before: str) -> None:
        self._count += 1
        run = Run(workflow_id, workflow_type, queue, f"run-{self._count}", self.task_seconds, before)
        self.current[workflow_id] = run
        run.append(Event(What.STARTED, self.now, content=list(arguments)))
        self._schedule(run)

    def _note(self, run: Run, event: Event) -> None:
        if run.task is not None:  # events during a task are buffered until its end
            run.buffered.append(event)
        else:
            run.append(event)
            self._schedule(run)

    def _schedule(self, run: Run) -> None:
        if run.is_task_scheduled or not run.is_open or run.task is not None:
            return
        run.is_task_scheduled = True
        run.append(Event(What.TASK_SCHEDULED, self.now))
        wait, _ = self.matching.draw_wait()
        delay = wait + (0.0 if run.attempt == 1 else min(2.0**run.attempt, 60.0) - 2)
        self._loop.call_later(delay, self._hand_out, run)

    def _hand_out(self, run: Run) -> None:
        worker = self.matching.pick_worker(run.sticky)
        if worker is None:
            self._loop.call_later(1.0, self._hand_out, run)
            return
        run.is_task_scheduled = False
        run.sticky = worker
        worker.begin_task(self._begin_task(run))

    def _begin_task(self, run: Run) -> WorkflowTask:
        is_suggested = len(run.history) > self.suggest_after
        run.append(Event(What.TASK_BEGUN, self.now, content=(run.size, is_suggested)))
        run.task = task = WorkflowTask(run, list(run.history))
        self._loop.call_later(run.task_seconds, self._time_out, task)
        return task

    def _time_out(self, task: WorkflowTask) -> None:
        if not task.is_over:
            self.faults.hits["task timed out"] += 1
            for activity in task.run.unobserved:
                activity.note_hit()  # its worker may end meanwhile, and the run before it has used the answer
            task.end()
            self._fail(task.run)

    def _fail(self, run: Run) -> None:
        run.attempt += 1
        run.sticky = run.view = None
        run.append(Event(What.TASK_FAILED, self.now))
        run.flush()
        self._schedule(run)

    def _obey(self, run: Run, command: Command) -> None:
        event = Event(command.what, self.now, command.seq, command.content)
        run.append(event)

        match command.what:
            case What.TIMER_STARTED:
                run.timers[command.seq] = self._loop.call_later(command.content, self._fire, run, command.seq)
            case What.TIMER_CANCELED:
                run.cancel_timer(command.seq)
            case What.ACTIVITY_SCHEDULED:
                run.activities[command.seq] = ActivityTask(self, run, command.content)
            case What.CONTINUED:
                run.close()
                queue = command.content.task_queue or run.task_queue
                self._begin_run(run.workflow_type, run.workflow_id, queue, command.content.arguments, run.run_id)
            case What.COMPLETED:
                run.close()
                run.result = command.content.result
            case _:
                pass

    def _fire(self, run: Run, seq: int) -> None:
        run.timers.pop(seq, None)
        if run.is_open:
            self._note(run, Event(What.TIMER_FIRED, self.now, seq))
