"""Replicas: a run in the cache of one worker; a model of the SDK's core around the SDK's real workflow instance.

The model follows the core's `workflow_machines.rs`: histories are applied in pieces; results of local activities are
looked up one piece ahead; the workflow's clock is set by the begin of tasks and by the duration of local activities;
each command must match the event in its place, or the run is not deterministic.
"""

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.bridge.proto.common import WorkerDeploymentVersion
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import ScheduleLocalActivity, WorkflowCommand

from chaos.simulation import activation
from chaos.simulation.history import CLOSING, COMMANDED, Command, Event, Resolution, What, find_piece_end
from shared.messages.message import SERIAL_BUILDS


class NotDeterministic(Exception):
    """A replay gave other commands than the first execution; a real worker would fail the task for ever."""


@dataclass(slots=True)
class LocalActivity:
    """A local activity that workflow code has scheduled."""

    request: ScheduleLocalActivity
    asked_at: float
    """The workflow's clock when the activity was scheduled."""
    is_known: bool = False
    """Whether its result comes from the history."""
    is_resolved: bool = False
    is_begun: bool = False


class Replica:
    """One run, advanced by its history and by its worker."""

    def __init__(self, run: activation.RunDetails) -> None:
        self.run = run
        self.position = 0
        """Number of events that have been applied."""
        self.clock = 0.0
        self.is_replaying = True
        self.is_closed = False
        self._instance: Any = None
        self._jobs: list[WorkflowActivationJob] = []
        self._commands: deque[Command] = deque()
        self._sent = 0
        self._locals: dict[int, LocalActivity] = {}
        self._ahead: dict[int, Resolution] = {}
        self._begun: Event | None = None

    @property
    def object(self) -> Any:
        """The workflow object."""
        return activation.get_object(self._instance)

    def feed(self, history: Sequence[Event]) -> None:
        """Apply all new events of a history; raises NotDeterministic and WorkflowTaskFailure."""
        while self.position < len(history):
            end = find_piece_end(history, self.position)
            self.is_replaying = end < len(history)
            for event in history[self.position : end]:
                self._apply(event)
            self.position = end
            for event in history[end : find_piece_end(history, end)] if self.is_replaying else ():
                if event.what is What.MARKED:
                    self._look_ahead(event)
                elif event.what is What.PATCHED:
                    self._jobs.append(activation.patch_job(event.content))
            self._run()

    def resolve(self, seq: int, result: Any, seconds: float, *, is_delivered: bool) -> None:
        """Record a local activity's result; unless it is delivered now, workflow code gets it with the next task."""
        activity = self._locals[seq]
        resolution = Resolution(result, activity.asked_at + seconds)
        self._commands.append(Command(What.MARKED, seq, resolution))
        self._deliver(seq, resolution)
        if is_delivered:
            self._run()

    def to_begin(self) -> list[LocalActivity]:
        """Give the local activities that must begin now."""
        waiting = [a for a in self._locals.values() if not a.is_begun and not a.is_resolved]
        for activity in waiting:
            activity.is_begun = True
        return waiting

    @property
    def is_busy(self) -> bool:
        """Whether local activities are running."""
        return any(not activity.is_resolved for activity in self._locals.values())

    @property
    def is_at_rest(self) -> bool:
        """Whether no local activity is running, and workflow code has received everything."""
        return not self.is_busy and not self._jobs

    def take_commands(self) -> list[Command]:
        """Give the commands that the server does not have yet."""
        fresh = list(self._commands)[self._sent :]
        self._sent = len(self._commands)
        return fresh

    def query(self, name: str, arguments: Sequence[Any]) -> Any:
        """Run a query; gives the payload of its result, or None if it failed."""
        (answer,) = self._activate([activation.query_job(name, arguments)], is_replaying=True)
        found = answer.respond_to_query
        return found.succeeded.response if found.HasField("succeeded") else None

    def _apply(self, event: Event) -> None:
        if event.what in COMMANDED:
            self._match(event)
            return
        match event.what:
            case What.STARTED:
                self.clock = event.at
                self._instance = activation.build_instance(self.run, event.at)
                self._jobs.append(activation.initialize_job(self.run, event.content, event.at))
            case What.SIGNALED:
                self._jobs.append(activation.signal_job(*event.content))
            case What.TIMER_FIRED:
                self._jobs.append(activation.timer_job(event.seq))
            case What.ACTIVITY_ENDED:
                self._jobs.append(activation.activity_job(event.seq, event.content, is_local=False))
            case What.TASK_BEGUN:
                self.clock = max(self.clock, event.at)
                self._begun = event
            case _:
                pass

    def _match(self, event: Event) -> None:
        if event.what is What.MARKED and (activity := self._locals.get(event.seq)) and activity.is_known:
            return  # the core handles results that it has looked up in another way
        if not self._commands:
            raise NotDeterministic(f"the history has {event.what} {event.seq}, the replay gave nothing")
        command = self._commands.popleft()
        self._sent = max(self._sent - 1, 0)
        if (command.what, command.seq) != (event.what, event.seq):
            raise NotDeterministic(
                f"the history has {event.what} {event.seq}, the replay gave {command.what} {command.seq}"
            )
        self.is_closed = event.what in CLOSING

    def _look_ahead(self, event: Event) -> None:
        activity = self._locals.get(event.seq)
        if activity is None:
            self._ahead[event.seq] = event.content
        elif not activity.is_resolved:
            activity.is_known = True
            self._deliver(event.seq, event.content)

    def _deliver(self, seq: int, resolution: Resolution) -> None:
        self._locals[seq].is_resolved = True
        self.clock = max(self.clock, resolution.complete_time)
        self._jobs.append(activation.activity_job(seq, resolution, is_local=True))

    def _run(self) -> None:
        while self._jobs:
            jobs, self._jobs = self._jobs, []
            for command in self._activate(jobs, is_replaying=self.is_replaying):
                self._take(command)

    def _take(self, command: WorkflowCommand) -> None:
        read = activation.read_command(command)
        if read is not None:
            self._commands.append(read)
            return
        request = command.schedule_local_activity
        self._locals[request.seq] = LocalActivity(request, self.clock)
        if (known := self._ahead.pop(request.seq, None)) is not None:
            self._locals[request.seq].is_known = True
            self._deliver(request.seq, known)

    @property
    def _build_id(self) -> str:
        """The same for all tasks of a run: of an older version, of today, or of a deployment, which a patch marks."""
        ends = ("", *SERIAL_BUILDS)
        return "simulation" + ends[zlib.crc32(self.run.run_id.encode()) % len(ends)]

    def _activate(self, jobs: list[WorkflowActivationJob], *, is_replaying: bool) -> list[WorkflowCommand]:
        size, is_suggested = (0, False) if self._begun is None else self._begun.content
        given = WorkflowActivation(
            run_id=self.run.run_id,
            timestamp=activation.to_timestamp(self.clock),
            is_replaying=is_replaying,
            history_length=self.position,
            history_size_bytes=size,
            continue_as_new_suggested=is_suggested,
            deployment_version_for_current_task=WorkerDeploymentVersion(build_id=self._build_id),
            jobs=jobs,
        )
        return activation.activate(self._instance, given)
