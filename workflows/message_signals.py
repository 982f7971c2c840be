"""The signals of a message that has a workflow of its own."""

from functools import partial

from shared.messages.signal_reading import read_signal
from shared.messages.signals import (
    SIGNAL_NAMES,
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    UnreadableSignal,
)
from workflows.replay.signal_handlers import IgnoresUnknownSignals, log_ignored, signal_handler

_TYPE_NAMES = {name: kind.__name__ for kind, name in SIGNAL_NAMES.items()}


class MessageSignals(IgnoresUnknownSignals):
    """Passes each signal to `_take`, also one that can't be read."""

    def _take(self, signal: Signal | UnreadableSignal) -> None:
        raise NotImplementedError

    def ignore_signal(self, name: str, problem: str) -> None:
        """Remember that a signal is ignored, and why."""
        log_ignored(name, problem)
        self._take(UnreadableSignal(_TYPE_NAMES.get(name, name), problem))

    @signal_handler(partial(read_signal, RunNow))
    def run_now(self, signal: RunNow = RunNow()) -> None:
        """Run as soon as a worker is free."""
        self._take(signal)

    @signal_handler(partial(read_signal, Reschedule))
    def reschedule(self, signal: Reschedule) -> None:
        """Change the due time."""
        self._take(signal)

    @signal_handler(partial(read_signal, Reprioritize))
    def reprioritize(self, signal: Reprioritize) -> None:
        """Change the priority."""
        self._take(signal)

    @signal_handler(partial(read_signal, Revise))
    def revise(self, signal: Revise) -> None:
        """Replace the payload."""
        self._take(signal)

    @signal_handler(partial(read_signal, Pause))
    def pause(self, signal: Pause = Pause()) -> None:
        """Pause until resumed."""
        self._take(signal)

    @signal_handler(partial(read_signal, Resume))
    def resume(self, signal: Resume = Resume()) -> None:
        """End a pause."""
        self._take(signal)

    @signal_handler(partial(read_signal, Stop))
    def stop(self, signal: Stop = Stop()) -> None:
        """End for good."""
        self._take(signal)

    @signal_handler(partial(read_signal, PullForward))
    def pull_forward(self, signal: PullForward) -> None:
        """Run ahead of time if still due at the expected moment."""
        self._take(signal)
