"""What a pack hands out: the messages of a batch, those whose handlers are at work, and what it waits for."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shared.messages.message import MessageState, Outcome
from shared.messages.placement import PackSpread
from shared.packs.entry import DUE, EARLY, LATE, OTHERS, Entry, is_held, is_parked, lane_of, measure

BATCH_MAX = 500
"""Most messages in one batch: with outcomes of 100 bytes its answer is far below what a server warns of."""
BATCH_BYTES_MAX = 200_000

HANDED_BACK = Outcome("handed_back", reason="its batch was over before it began")


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages whose handlers are to be called together; `entries` are what the batch activity gets, in that order.

    All are in it that were due `until` then; None: that were due by what had been reached, which is alike on a replay.
    """

    number: int
    lane: str
    ids: tuple[str, ...]
    entries: list[Entry]
    until: float | None


@dataclass(frozen=True, slots=True)
class Running:
    """A message whose handler is at work in a batch; `asked` is its place among those asked for.

    `state` is what signals have made of it since, None where there were none, and `growth` by how many bytes.
    """

    batch: int
    entry: Entry
    asked: int | None
    state: MessageState | None = None
    growth: int = 0

    @property
    def size(self) -> int:
        """How many bytes of the pack's are its own."""
        return measure(self.entry) + self.growth


@dataclass(frozen=True, slots=True)
class PackSummary:
    """What a pack is waiting for: moments in seconds since the epoch, infinite where there is nothing to wait for."""

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
    """Say what a pack of such entries waits for, and when to wake for what runs on some of the lanes."""
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
