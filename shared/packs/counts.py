"""Pack counts: what a pack holds, in a compact form for its memo, so that nobody has to ask the pack."""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from shared.lanes import LANES
from shared.messages.signal_reading import is_int, is_moment
from shared.packs.entry import DUE, OTHERS, Entry, is_ended, is_held, is_parked, lane_of

COUNTS_MEMO = "counts"
FIRST = "first"
"""Key of counts that whoever began the pack has made from the first chunk; what came later is not in them."""

STEPS = 12
"""Steps of a due curve. A herd of a twelfth of a lane's messages is as sharp in it as it is in the pack."""

NONE: Mapping[str, Any] = MappingProxyType({})
_NUMBERS = ("asleep", "paused", "parked", "running")


@dataclass(frozen=True, slots=True)
class LaneCounts:
    """What a pack holds for one lane.

    `due` are rising moments, in seconds since the epoch: when messages at even distances in the order of due times
    are due, from the first of those asleep to the last. Up to 13 messages it has all of them.
    """

    asleep: int = 0
    paused: int = 0
    parked: int = 0
    running: int = 0
    due: Sequence[float] = ()

    @property
    def next_due(self) -> float | None:
        """When the first message is due; None if none is asleep."""
        return self.due[0] if self.due else None

    def count_due(self, before: float) -> float:
        """Give about how many of those asleep are due before a moment: exact at the curve's own moments."""
        passed = bisect.bisect_left(self.due, before)
        if passed == 0:
            return 0.0
        if passed == len(self.due):
            return float(self.asleep)

        begin = self.due[passed - 1]
        end = self.due[passed]
        low, high = (round((self.asleep - 1) * n / (len(self.due) - 1)) for n in (passed - 1, passed))
        return low + 1 + (high - low - 1) * (before - begin) / (end - begin)


@dataclass(frozen=True, slots=True)
class PackCounts:
    """What a pack held at a moment (seconds since the epoch); only the pack itself knows what changed since."""

    at: float
    lanes: Mapping[str, LaneCounts] = field(default_factory=dict[str, LaneCounts])
    is_first: bool = False
    """Only the chunk is counted that the pack began with."""

    @property
    def alive(self) -> int:
        """How many messages are alive."""
        return sum(lane.asleep + lane.paused + lane.parked + lane.running for lane in self.lanes.values())


def count_entries(entries: Iterable[Entry], running: Iterable[Entry], default_lane: str, at: float) -> dict[str, Any]:
    """Count a pack's entries and those whose handlers are running; gives the wire form, at most some hundred bytes.

    `at` is the present moment, from a clock that a replay repeats. As in `overview`, what is parked and paused counts
    as parked.
    """
    due: dict[str, list[int]] = {}
    counts: dict[str, dict[str, int]] = {}
    default = due[default_lane] = []

    for entry in entries:
        if len(entry) <= OTHERS:  # by far the most; every other function call would double the time
            default.append(entry[DUE])
            continue
        lane = lane_of(entry, default_lane)
        if is_held(entry):
            name = "parked" if is_parked(entry) else "paused"
            _add(counts, lane, name)
        elif not is_ended(entry):
            due.setdefault(lane, []).append(entry[DUE])

    for entry in running:
        _add(counts, lane_of(entry, default_lane), "running")

    return count_due(due, at, counts)


def count_due(
    due: Mapping[str, list[int]], at: float, others: Mapping[str, Mapping[str, int]] = NONE
) -> dict[str, Any]:
    """Count messages asleep, by lane and when they are due (milliseconds); gives the same wire form with `others`."""
    begin = round(at)
    lanes: dict[str, Any] = dict(others)
    for lane, moments in due.items():
        if moments:
            lanes[lane] = {"asleep": len(moments), **lanes.get(lane, {}), "due": _to_curve(moments, begin)}
    return {"at": begin, "lanes": lanes}


def _add(counts: dict[str, dict[str, int]], lane: str, name: str) -> None:
    found = counts.setdefault(lane, {})
    found[name] = found.get(name, 0) + 1


def _to_curve(moments: list[int], begin: int) -> list[int]:
    """Give the moments (milliseconds) of messages at even distances, in seconds after `begin`."""
    moments.sort()
    last = len(moments) - 1
    steps = min(last, STEPS)
    ranks = (round(last * n / steps) for n in range(steps + 1)) if steps else (0,)
    return [moments[rank] // 1000 - begin for rank in ranks]


def read_counts(wire: Any) -> PackCounts | None:
    """Read a wire form of any version; None for what is none, as in the memo of an older pack."""
    if not isinstance(wire, dict) or not is_moment(cast("dict[str, Any]", wire).get("at")):
        return None
    named = cast("dict[str, Any]", wire)
    at = float(named["at"])
    lanes = cast("dict[str, Any]", named["lanes"]) if isinstance(named.get("lanes"), dict) else {}
    found = {lane: _read_lane(lanes[lane], at) for lane in LANES if isinstance(lanes.get(lane), dict)}
    return PackCounts(at, found, is_first=bool(named.get(FIRST)))


def _read_lane(wire: dict[str, Any], at: float) -> LaneCounts:
    numbers = {name: max(0, cast("int", wire[name])) for name in _NUMBERS if is_int(wire.get(name))}
    curve = cast("list[Any]", wire["due"]) if isinstance(wire.get("due"), list) else []
    due = sorted(at + offset for offset in curve if is_int(offset))
    if len(due) > numbers.get("asleep", 0):  # nothing that a pack has written
        due = []
    return LaneCounts(**numbers, due=due)
