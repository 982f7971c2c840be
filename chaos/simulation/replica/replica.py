"""Replicas: a run in the cache of one worker; a model of the SDK's core around the SDK's real workflow instance.

The model follows the core's `workflow_machines.rs`: histories are applied in pieces; the workflow's clock is set by the
begin of tasks; each command must match the event in its place, or the run is not deterministic.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand

from chaos.simulation.replica import activation
from chaos.simulation.replica.history import CLOSING, COMMANDED, Command, Event, What, find_piece_end


class NotDeterministic(Exception):
    """A replay gave other commands than the first execution; a real worker would fail the task for ever."""


class Replica:
    """One run, advanced by its history."""

    def __init__(self, run: activation.RunDetails) -> None:
        self.run = run
        self.position = 0
        """Number of events that have been applied."""
        self.clock = 0.0
        self.is_closed = False
        self._instance: Any = None
        self._jobs: list[WorkflowActivationJob] = []
        self._commands: deque[Command] = deque()
        self._sent = 0
        self._begun: Event | None = None

    @property
    def object(self) -> Any:
        """The workflow object."""
        return activation.get_object(self._instance)

    def feed(self, history: Sequence[Event]) -> None:
        """Apply all new events of a history; raises NotDeterministic and WorkflowTaskFailure."""
        while self.position < len(history):
            end = find_piece_end(history, self.position)
            for event in history[self.position : end]:
                self._apply(event)
            self.position = end
            self._run(is_replaying=end < len(history))

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
                self._jobs.append(activation.activity_job(event.seq, event.content))
            case What.TASK_BEGUN:
                self.clock = max(self.clock, event.at)
                self._begun = event
            case _:
                pass

    def _match(self, event: Event) -> None:
        if not self._commands:
            raise NotDeterministic(f"the history has {event.what} {event.seq}, the replay gave nothing")
        command = self._commands.popleft()
        self._sent = max(self._sent - 1, 0)
        if (command.what, command.seq) != (event.what, event.seq):
            raise NotDeterministic(
                f"the history has {event.what} {event.seq}, the replay gave {command.what} {command.seq}"
            )
        self.is_closed = event.what in CLOSING

    def _run(self, *, is_replaying: bool) -> None:
        jobs = self._jobs
        self._jobs = []
        if jobs:
            commands = self._activate(jobs, is_replaying=is_replaying)
            self._commands.extend(map(activation.read_command, commands))

    def _activate(self, jobs: list[WorkflowActivationJob], *, is_replaying: bool) -> list[WorkflowCommand]:
        size, is_suggested = (0, False) if self._begun is None else self._begun.content
        given = WorkflowActivation(
            run_id=self.run.run_id,
            timestamp=activation.to_timestamp(self.clock),
            is_replaying=is_replaying,
            history_length=self.position,
            history_size_bytes=size,
            continue_as_new_suggested=is_suggested,
            jobs=jobs,
        )
        return activation.activate(self._instance, given)
