"""Histories: the events of a run, cut like in the SDK's core into the pieces that workflow code gets at once."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class What(enum.StrEnum):
    """The type of an event, and of the command that causes it."""

    STARTED = "workflow started"
    SIGNALED = "signaled"
    TASK_SCHEDULED = "task scheduled"
    TASK_BEGUN = "task begun"
    TASK_COMPLETED = "task completed"
    TASK_FAILED = "task failed"
    TIMER_STARTED = "timer started"
    TIMER_CANCELED = "timer canceled"
    TIMER_FIRED = "timer fired"
    ACTIVITY_SCHEDULED = "activity scheduled"
    ACTIVITY_ENDED = "activity ended"
    UPSERTED = "search attributes upserted"
    MEMO_CHANGED = "memo changed"
    CONTINUED = "continued as new"
    COMPLETED = "workflow completed"


COMMANDED = frozenset(
    {
        What.TIMER_STARTED,
        What.TIMER_CANCELED,
        What.ACTIVITY_SCHEDULED,
        What.UPSERTED,
        What.MEMO_CHANGED,
        What.CONTINUED,
        What.COMPLETED,
    }
)
"""Events that commands of workflow code cause."""

CLOSING = frozenset({What.CONTINUED, What.COMPLETED})


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `seq` is the workflow's number of a timer or activity, `content` holds all other data."""

    what: What
    at: float
    seq: int = 0
    content: Any = None


@dataclass(frozen=True, slots=True)
class Command:
    """One command of workflow code; its event has the same `what` and `seq`."""

    what: What
    seq: int = 0
    content: Any = None


def find_piece_end(events: Sequence[Event], begin: int) -> int:
    """Give the end of the piece that begins at an index: the begin of the next task that did not fail.

    As the core's `find_end_index_of_next_wft_seq`.
    """
    for index in range(begin, len(events)):
        event = events[index]
        if event.what in CLOSING:
            return index + 1
        if event.what is not What.TASK_BEGUN:
            continue
        after = [e.what for e in events[index + 1 : index + 2]]
        if after != [What.TASK_FAILED]:
            return index + 1
    return len(events)
