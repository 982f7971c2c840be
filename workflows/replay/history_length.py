"""History length: how long a run's history has become, counted from what was heard, which is alike on a replay.

The server's own figures, and its suggestion to continue as new, belong to a workflow task; on a replay, tasks that only
kept a local activity going are passed over, and the same decision may meet the figures of another task.
"""

from collections.abc import Sequence
from typing import Any

from temporalio.common import RawValue

from shared.packs.entry import measure

EVENTS_MAX = 4096
"""Continue as new beyond this: from so many on the server suggests it by default."""

BYTES_MAX = 1_000_000
"""And beyond this, whatever filled the history."""

SIGNAL_EVENTS = 7
"""A signal, the task that it brings, a timer instead of the one before, search attributes."""

BATCH_EVENTS = 10
"""A batch with what begins and ends it."""


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
        """Add events of so many bytes in all, beside what each takes of itself."""
        self._events += events
        self._bytes += size


def measure_arguments(arguments: Sequence[Any]) -> int:
    """Give the bytes of a signal's arguments, fewer where one is nothing that can be written as JSON."""
    return sum(map(_measure_argument, arguments))


def _measure_argument(argument: Any) -> int:
    if isinstance(argument, RawValue):
        return len(argument.payload.data)
    try:
        return measure(argument)
    except (TypeError, ValueError, RecursionError):
        return 0
