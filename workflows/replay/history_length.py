"""History length: how long a run's history has become, counted from its input, which is the same on replay.

The server's own figures, and its suggestion to continue as new, belong to a workflow task. A replay skips tasks that
only kept a local activity going, so the same decision may see the figures of another task.
"""

from collections.abc import Sequence
from typing import Any

from temporalio.common import RawValue

from shared.packs.entry import measure

EVENTS_MAX = 4096  # continue as new beyond this number of events, at which the server suggests it by default
BYTES_MAX = 1_000_000  # continue as new beyond this size, whatever filled the history
SIGNAL_EVENTS = 7  # for each signal: the signal, its workflow task, a replaced timer, search attributes
BATCH_EVENTS = 10  # for each batch, with its begin and its end


class HistoryLength:
    """Counts what is added to a history."""

    def __init__(self) -> None:
        self._events = 0
        self._bytes = 0

    @property
    def is_too_long(self) -> bool:
        """The run should continue as new."""
        return self._events > EVENTS_MAX or self._bytes > BYTES_MAX

    def add(self, events: int, size: int = 0) -> None:
        """Add events and the bytes of their payloads, without what each event itself takes."""
        self._events += events
        self._bytes += size


def measure_arguments(arguments: Sequence[Any]) -> int:
    """Return the bytes of a signal's arguments; an argument that can't be written as JSON counts as none."""
    return sum(map(_measure_argument, arguments))


def _measure_argument(argument: Any) -> int:
    if isinstance(argument, RawValue):
        return len(argument.payload.data)
    try:
        return measure(argument)
    except (TypeError, ValueError, RecursionError):
        return 0
