"""Batches of a pack, messages whose handlers are running, and the summary of what the pack waits for."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shared.messages.message import MessageState, Outcome
from shared.messages.placement import PackSpread
from shared.packs.entry import DUE, EARLY, LATE, OTHERS, Entry, is_held, is_parked, lane_of, measure

BATCH_MAX = 500
"""With outcomes of 100 bytes, the result of a batch stays far below the size at which a server warns."""
BATCH_BYTES_MAX = 200_000

HANDED_BACK = Outcome("handed_back", reason="its batch was over before it began")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages whose handlers are called together; `entries` are what the batch activity gets, in the order of `ids`.

    Contains every message due by `until`; if None, every message due by the last replay-safe time.
    """

    number: int
    lane: str
    ids: tuple[str, ...]
    entries: list[Entry]
    until: float | None


@dataclass(frozen=True, slots=True)
class RunningMessage:
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


def summarize(
    entries: Iterable[Entry], lanes: Collection[str], *, usual_lane: str, within: PackSpread, running: int
) -> PackSummary:
    """Summarize a pack's entries; `wake_at` is when the pack must wake for messages on `lanes`."""
    wake = due = earliest = math.inf
    asleep, held, parked, is_open = 0, 0, 0, usual_lane in lanes
    most, patience = within.coalesce * 1000, within.patience
    for entry in entries:
        is_usual = len(entry) <= OTHERS
        if not is_usual and is_held(entry):
            held += 1
            parked += is_parked(entry)
            continue
        asleep += 1
        moment = entry[DUE]
        due = min(due, moment)
        earliest = min(earliest, moment - entry[EARLY])
        if is_open if is_usual else lane_of(entry, usual_lane) in lanes:
            wake = min(wake, moment + min(entry[LATE], most) * patience)
    moments = (wake / 1000, due / 1000, earliest / 1000)
    return PackSummary(*moments, asleep=asleep, held=held, parked=parked, running=running)
