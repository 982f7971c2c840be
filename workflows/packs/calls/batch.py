"""Batches of a pack: which due messages go into one, and in which order."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from shared.messages.timespan import floor_ms
from shared.packs.entry import DUE, ID, OTHERS, Entry, is_held, lane_of, measure, priority_of, tenant_of

BATCH_MAX = 2_000  # with outcomes of 100 bytes, the result of a batch stays below the size at which a server warns
BATCH_FIRST = 500
BATCH_MIN = 100
BATCH_BYTES_MAX = 200_000

Urgency = Callable[[Entry], tuple[int, int, str]]
"""Gives the sort key of a due message; no two are equal."""


@dataclass(slots=True)
class Batch:
    """Messages whose handlers are called together; the activity gets `entries`, in the order of `ids`.

    Once it has answered, `queue` names the worker process that holds the calls still in flight.
    """

    token: str
    lane: str
    ids: list[str]
    entries: list[Entry] = field(default_factory=list[Entry])
    queue: str = ""
    left: list[int] = field(default_factory=list[int])
    """Positions of the messages whose outcomes the pack waits for, in rising order."""
    begun_at: float = 0.0
    """In seconds since the epoch."""
    asked_late: int = 0
    """How often the pack has asked in vain for calls whose time was over."""


class BatchLimit:
    """How many messages a batch may have: as many as have begun of the last one, and more if all have.

    What finds no slot in the worker comes back as it was, and has been sent for nothing.
    """

    def __init__(self) -> None:
        self.max = BATCH_FIRST

    def adapt(self, asked: int, begun: int) -> None:
        """Note how many calls a batch of `asked` messages has begun."""
        if begun < asked:
            self.max = max(begun, BATCH_MIN)
        elif asked == self.max:
            self.max = min(2 * asked, BATCH_MAX)


def find_due(entries: Iterable[Entry], lanes: Collection[str], default_lane: str, now: float) -> list[Entry]:
    """Find the messages that are due by `now` (seconds since the epoch) and can begin on `lanes`."""
    cutoff = floor_ms(now)
    is_default_open = default_lane in lanes
    due = [e for e in entries if e[DUE] <= cutoff]

    # a call for each of a thousand entries would take as long as all the rest
    return [
        e
        for e in due
        if (is_default_open if len(e) <= OTHERS else not is_held(e) and lane_of(e, default_lane) in lanes)
    ]


def find_lane(due: Collection[Entry], default_lane: str, urgency: Urgency) -> str:
    """Return the lane of the most urgent of some due messages."""
    if all(len(entry) <= OTHERS for entry in due):
        return default_lane
    return lane_of(min(due, key=urgency), default_lane)


def sort_in_turn(due: Iterable[Entry], urgency: Urgency) -> list[Entry]:
    """Sort due messages by urgency; tenants of one priority take turns, so none waits for all of another's."""
    ordered = sorted(due, key=urgency)
    if len(set(map(tenant_of, ordered))) < 2:
        return ordered

    given: Counter[tuple[int, str]] = Counter()

    def turn(entry: Entry) -> tuple[int, int]:
        priority = priority_of(entry)
        whose = (priority, tenant_of(entry))
        given[whose] += 1
        return priority, given[whose]

    return sorted(ordered, key=turn)


def fill_batch(due: Iterable[Entry], held_bytes: int, count_max: int = BATCH_MAX) -> list[Entry]:
    """Take the first due messages of a pack of `held_bytes`, as many as fit a batch of at most `count_max`."""
    entries: list[Entry] = []
    room = BATCH_BYTES_MAX
    for entry in due:
        entries.append(entry)
        if held_bytes > BATCH_BYTES_MAX:  # otherwise all entries fit together
            room -= measure(entry)
        if len(entries) == count_max or room <= 0:
            break

    return entries


def to_ids(entries: Iterable[Entry]) -> list[str]:
    """Give the ids of entries, in their order."""
    return [entry[ID] for entry in entries]
