"""Batches of a pack, its running and its finished messages, and the summary of what the pack waits for."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from shared.messages.message import MessageState, Outcome
from shared.messages.placement import PackSpread
from shared.packs.entry import DUE, EARLY, LATE, OTHERS, Entry, is_held, is_parked, lane_of, measure

BATCH_MAX = 500  # with outcomes of 100 bytes, the result of a batch stays far below the size at which a server warns
BATCH_BYTES_MAX = 200_000
FINISHED_KEPT_SECONDS = 24 * 3600.0  # a day, like Temporal's usual retention
HANDED_BACK = Outcome("handed_back", reason="its batch was over before it began")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages whose handlers are called together; `entries`, in the order of `ids`, are what the activity gets.

    All that are due by `until` are in it; if None, by the last replay-safe time.
    """

    number: int
    lane: str
    ids: tuple[str, ...]
    entries: list[Entry]
    until: float | None


def fill_batch(due: Iterable[Entry], held_bytes: int) -> list[Entry]:
    """Take the first due messages of a pack of `held_bytes`, as many as fit a batch."""
    entries: list[Entry] = []
    room = BATCH_BYTES_MAX
    for entry in due:
        entries.append(entry)
        if held_bytes > BATCH_BYTES_MAX:  # otherwise all entries fit together
            room -= measure(entry)
        if len(entries) == BATCH_MAX or room <= 0:
            break
    return entries


class RunningMessage(NamedTuple):
    """A message whose handler is running in a batch; `asked` is its place in the run-now queue.

    `state` is the message after the signals that came since, None without any; `growth` is the bytes they added.
    """

    batch: int
    entry: Entry
    asked: int | None
    state: MessageState | None = None
    growth: int = 0

    @property
    def size(self) -> int:
        """The bytes that the message takes in the pack."""
        return measure(self.entry) + self.growth


class FinishedMessages(dict[str, Entry]):
    """Finished messages by id, the oldest first, remembered for a while so that they are not started twice."""

    def forget(self, message_id: str) -> int:
        """Forget one message; return its bytes."""
        return measure(self.pop(message_id))

    def forget_old(self, now: float, most: int, excess: int) -> int:
        """Forget what is old, beyond `most`, or among the `excess` bytes of the pack; return the bytes freed."""
        freed, before = 0, (now - FINISHED_KEPT_SECONDS) * 1000
        while self:
            oldest = next(iter(self))
            is_young = self[oldest][DUE] >= before
            if is_young and len(self) <= most and freed >= excess:
                break
            freed += self.forget(oldest)
        return freed


@dataclass(frozen=True, slots=True)
class PackSummary:
    """What a pack waits for: moments in seconds since the epoch, infinite when there is nothing to wait for."""

    wake_at: float
    due_at: float
    earliest_at: float
    asleep: int
    held: int
    parked: int
    running: int

    @classmethod
    def of(cls, entries: Iterable[Entry], wake_at: float, running: int) -> "PackSummary":
        """Summarize a pack's entries, whose first can wait until `wake_at`."""
        usual, others = list[Entry](), list[Entry]()
        for entry in entries:
            (usual if len(entry) <= OTHERS else others).append(entry)
        free = [entry for entry in others if not is_held(entry)]
        parked = sum(map(is_parked, others)) if len(free) < len(others) else 0
        usual += free
        due = min([entry[DUE] for entry in usual], default=math.inf) / 1000
        earliest = min([entry[DUE] - entry[EARLY] for entry in usual], default=math.inf) / 1000
        held = len(others) - len(free)
        return cls(wake_at, due, earliest, asleep=len(usual), held=held, parked=parked, running=running)


def find_wake(entries: Iterable[Entry], lanes: Collection[str], usual_lane: str, within: PackSpread) -> float:
    """Return when the first message on one of `lanes` can wait no longer, in seconds since the epoch."""
    most, patience, is_usual_open = within.coalesce * 1000, within.patience, usual_lane in lanes
    # one list, not a generator: a pack does this several times a wake, with a thousand entries
    moments = [
        e[DUE] + (late if (late := e[LATE]) < most else most) * patience
        for e in entries
        if (is_usual_open if len(e) <= OTHERS else lane_of(e, usual_lane) in lanes and not is_held(e))
    ]
    return min(moments, default=math.inf) / 1000
