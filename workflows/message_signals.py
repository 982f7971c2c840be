"""The signals of a message that has a workflow of its own."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from shared.messages import signals
from shared.messages.signal_reading import read_signal
from shared.messages.signals import SIGNAL_NAMES, Signal, UnreadableSignal
from workflows.replay.signal_handlers import IgnoresUnknownSignals, log_ignored, signal_handler

_TYPE_NAMES = {name: kind.__name__ for kind, name in SIGNAL_NAMES.items()}


def _takes(kind: type[Signal]) -> Callable[[Any, Signal], None]:
    @signal_handler(partial(read_signal, kind), SIGNAL_NAMES[kind])
    def take(self: "MessageSignals", signal: Signal) -> None:
        self.take(signal)

    return cast("Callable[[Any, Signal], None]", take)


class MessageSignals(IgnoresUnknownSignals):
    """Passes each signal to `take`, also one that can't be read."""

    run_now = _takes(signals.RunNow)
    reschedule = _takes(signals.Reschedule)
    reprioritize = _takes(signals.Reprioritize)
    revise = _takes(signals.Revise)
    pause = _takes(signals.Pause)
    resume = _takes(signals.Resume)
    stop = _takes(signals.Stop)
    pull_forward = _takes(signals.PullForward)

    def take(self, signal: Signal | UnreadableSignal) -> None:
        """Apply a signal when its turn comes."""
        raise NotImplementedError

    def ignore_signal(self, name: str, problem: str) -> None:
        """Remember that a signal is ignored, and why."""
        log_ignored(name, problem)
        self.take(UnreadableSignal(_TYPE_NAMES.get(name, name), problem))
