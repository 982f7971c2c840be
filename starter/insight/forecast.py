"""Forecast: how many messages are due when, how many their lanes can run, and where a lane is overloaded."""

import bisect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from statistics import mean
from typing import Any

from temporalio.client import Client

from activities.idle.capacity import Capacity
from shared.keepers.gates import LANE_GATE, GateClosure
from shared.lanes import LANES, task_queue
from shared.messages.timespan import format_exact, format_moment, format_seconds
from shared.settings import Settings
from shared.temporal.connect import translate_rpc_errors
from starter.insight.due_counts import (
    DueGroup,
    PackDueCounts,
    add_openings,
    count_packed,
    count_solo,
    count_solo_groups,
    find_gated_kinds,
    hold_at_gate,
    is_countable,
)
from starter.steering.keepers import GateControl
from starter.steering.packs.packs import Packs
from starter.steering.selection import Selection

INTERVALS_MAX = 36
STEPS = tuple(
    timedelta(seconds=seconds) for seconds in (60, 300, 900, 1800, 3600, 7200, 6 * 3600, 12 * 3600, 86400, 7 * 86400)
)
NOTABLE_SECONDS = 60.0

OTHER_KINDS = "other kinds"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCapacity:
    """Capacity of a lane: `per_second` messages, None if unknown; `measured` of its `workers` have measured theirs."""

    per_second: float | None
    workers: int = 0
    measured: int = 0
    is_given: bool = False
    """A person gave the value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """More is due on a lane than it can run, from interval `first` on, until everything has run at `clear_at`."""

    lane: str
    first: int
    per_second: float
    due: int = 0
    clear_at: float = 0.0
    latest_seconds: float = 0.0
    """Longest time that a message waits."""
    factor: float = 1.0
    """How many times its capacity the lane would need so that no message waits."""

    def describe(self, edges: Sequence[float]) -> str:
        """Say when more is due than a lane can do, what follows, and what to do about it."""
        begin = edges[self.first]
        end = edges[self.first + 1]
        whole = self.due / self.per_second

        return (
            f"lane {self.lane} from {format_moment(begin)} to {format_moment(end)}: more is due than the "
            f"{self.per_second:,.4g} messages a second that it can do; the last of {self.due:,} runs "
            f"{format_seconds(self.latest_seconds)} late, and all have run by {format_moment(self.clear_at)}. "
            f"Spread them over at least {format_seconds(whole)} with a tolerance, "
            f"or run {self.factor:.1f} times as many workers"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Due messages by group and interval: interval n lies between the edges n and n + 1 (seconds since the epoch).

    The first interval includes overdue messages. Each message counts once, when it is due next, or when the closed gate
    of its kind or lane opens; paused and parked messages do not count.
    """

    edges: Sequence[float]
    due: Mapping[str, Sequence[int]]
    lanes: Mapping[str, Sequence[int]]
    """The same by lane, whatever `due` is grouped by."""
    capacity: Mapping[str, LaneCapacity]
    packed: PackDueCounts
    overloads: Sequence[Overload] = field(default_factory=tuple[Overload, ...])
    gates: Mapping[str, GateClosure] = field(default_factory=dict[str, GateClosure])
    """Closed gates; messages that need one which is not countable count as due, although they wait there."""
    gated: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """By lane and closed gate of a kind or lane: messages due before it opens. They count as due when it does."""

    @property
    def uncounted_gates(self) -> list[str]:
        """The closed gates of which only messages know that they need them: those count as due, and wait."""
        return [gate for gate in self.gates if not is_countable(gate)]

    def count_gated(self, *, lane: str | None = None, gate: str | None = None) -> int:
        """Give how many messages are due before their gate opens, on a lane or at a gate."""
        return sum(
            count
            for lane_held, by_gate in self.gated.items()
            for gate_held, count in by_gate.items()
            if lane in (None, lane_held) and gate in (None, gate_held)
        )

    def to_document(self) -> dict[str, Any]:
        """Give it as an object for JSON."""
        moments = [*map(format_exact, self.edges)]
        return {
            "intervals": [
                {"from": begin, "to": end, "due": {name: counts[n] for name, counts in self.due.items()}}
                for n, (begin, end) in enumerate(itertools.pairwise(moments))
            ],
            "capacity": {lane: asdict(capacity) for lane, capacity in self.capacity.items()},
            "packs": self.packed.packs,
            "packs_asked": self.packed.asked,
            "is_about": self.packed.is_about,
            "oldest_count_seconds": round(self.packed.age) if self.packed.is_about else None,
            "packs_not_counted": self.packed.uncounted,
            "kinds_not_asked": list(self.packed.silent),
            "held_at_gates": {lane: self.count_gated(lane=lane) for lane in self.lanes},
            "closed_gates": [
                closing.to_document(gate) | {"held": self.count_gated(gate=gate) if is_countable(gate) else None}
                for gate, closing in self.gates.items()
            ],
            "warnings": [
                {
                    "lane": overload.lane,
                    "from": moments[overload.first],
                    "to": moments[overload.first + 1],
                    "due": overload.due,
                    "clear_at": format_exact(overload.clear_at),
                    "latest_seconds": round(overload.latest_seconds, 1),
                    "workers_factor": round(overload.factor, 2),
                    "text": overload.describe(self.edges),
                }
                for overload in self.overloads
            ],
        }


async def make_forecast(
    client: Client,
    settings: Settings,
    begin: float,
    horizon: timedelta,
    *,
    kinds: Sequence[str] | None = None,
    sample: int = 0,
    is_exact: bool = True,
    given: Mapping[str, float] | None = None,
) -> Forecast:
    """Count what is due from `begin` on, by lane; with `kinds` by kind, those that are named and those with packs.

    `sample` is how many packs of a kind are asked in place of all, 0 asks all. Unless `is_exact`, many packs are not
    asked but counted by their memos. `given` has messages a second for lanes whose capacity a person knows. Raises
    RetryLater while the server does not answer.
    """
    edges = choose_edges(begin, horizon)
    gates = await GateControl(client, settings).fetch(begin)
    ends = add_openings(edges[1:], gates)
    packed = await count_packed(Packs(client, settings), ends, sample, is_exact=is_exact)
    groups = [DueGroup(kind, lane, due) for (kind, lane), due in packed.due.items()]

    apart = {*await find_gated_kinds(client, gates, edges[-1])}
    if any(gate.startswith(LANE_GATE) for gate in gates):  # then what is due of a kind depends on the lane
        apart.update(kinds or ())
    groups += await count_solo_groups(client, [*LANES], sorted(apart), ends)

    by_lane = defaultdict[str, Counter[int]](Counter)
    by_kind = defaultdict[str, Counter[int]](Counter)
    gated = defaultdict[str, Counter[str]](Counter)
    for group in groups:
        held = hold_at_gate(group, ends, gates)
        due = _to_intervals(held.due, ends, edges)
        by_lane[group.lane].update(due)
        if held.gated:
            gated[group.lane][held.gate] += held.gated
        if group.kind:
            by_kind[group.kind].update(due)

    for kind in {*(kinds or ())} - apart:
        counts = await count_solo(client, Selection(kind=kind, state="active"), ends)
        by_kind[kind].update(_to_intervals(counts, ends, edges))

    lanes = {lane: _to_list(by_lane[lane], edges) for lane in LANES}
    capacity = {lane: await find_capacity(client, settings, lane, given or {}) for lane in LANES}
    overloads = (find_overload(lane, edges, lanes[lane], capacity[lane]) for lane in LANES)
    shown = lanes if kinds is None else _group_by_kind(by_kind, lanes, edges)
    return Forecast(
        edges=edges,
        due=shown,
        lanes=lanes,
        capacity=capacity,
        packed=packed,
        overloads=tuple(overload for overload in overloads if overload),
        gates=gates,
        gated=gated,
    )


def _to_intervals(counts: Mapping[int, int], ends: Sequence[float], edges: Sequence[float]) -> Counter[int]:
    """Give counts by interval of a forecast, of which some are divided by the opening of a gate."""
    found = Counter[int]()
    for n, count in counts.items():
        found[bisect.bisect_left(edges, ends[n], lo=1) - 1] += count
    return found


def _group_by_kind(
    by_kind: Mapping[str, Counter[int]], lanes: Mapping[str, Sequence[int]], edges: Sequence[float]
) -> dict[str, Sequence[int]]:
    grouped: dict[str, Sequence[int]] = {
        kind: counts for kind in sorted(by_kind) if any(counts := _to_list(by_kind[kind], edges))
    }
    sums = (sum(counts[n] for counts in lanes.values()) for n in range(len(edges) - 1))
    rest = [max(0, all_due - sum(counts[n] for counts in grouped.values())) for n, all_due in enumerate(sums)]
    return grouped | ({OTHER_KINDS: rest} if any(rest) else {})


async def find_capacity(client: Client, settings: Settings, lane: str, given: Mapping[str, float]) -> LaneCapacity:
    """Give the capacity of a lane: as given, or as its workers have measured it."""
    if lane in given:
        return LaneCapacity(per_second=given[lane], is_given=True)
    with translate_rpc_errors():
        workers = await Capacity(client, task_queue(settings.task_queue_prefix, lane)).read_measured()
    known = [measured.per_second for measured in workers if measured is not None]
    # a worker that has measured nothing yet counts like the mean of the others
    per_second = mean(known) * len(workers) if known else None
    return LaneCapacity(per_second=per_second, workers=len(workers), measured=len(known))


def choose_edges(begin: float, horizon: timedelta) -> list[float]:
    """Divide a stretch of time into intervals of a round length; the first begins now and ends at a round time."""
    weeks = math.ceil(horizon / STEPS[-1] / INTERVALS_MAX)
    seconds = next((step for step in STEPS if horizon / step <= INTERVALS_MAX), weeks * STEPS[-1]).total_seconds()
    edges = [begin]
    end = begin + horizon.total_seconds()
    while edges[-1] < end:
        edges.append((edges[-1] // seconds + 1) * seconds)
    return edges


def find_overload(lane: str, edges: Sequence[float], due: Sequence[int], capacity: LaneCapacity) -> Overload | None:
    """Give the first stretch in which a lane is so overloaded that a message waits a minute.

    What waits at the end of an interval is carried over to the next one.
    """
    if not (per_second := capacity.per_second):
        return None

    waiting = 0.0
    stretch = Overload(lane=lane, first=0, per_second=per_second)

    for n, (begin, end) in enumerate(itertools.pairwise(edges)):
        waiting = max(0.0, waiting + due[n] - per_second * (end - begin))
        if waiting:
            sum_due = stretch.due + due[n]
            lasts = end - edges[stretch.first]
            stretch = replace(
                stretch,
                due=sum_due,
                clear_at=end + waiting / per_second,
                latest_seconds=max(stretch.latest_seconds, waiting / per_second),
                factor=max(stretch.factor, sum_due / (per_second * lasts)),
            )
        elif stretch.latest_seconds >= NOTABLE_SECONDS:
            break
        else:
            stretch = Overload(lane=lane, first=n + 1, per_second=per_second)

    return stretch if stretch.latest_seconds >= NOTABLE_SECONDS else None


def _to_list(counts: Mapping[int, int], edges: Sequence[float]) -> list[int]:
    return [counts.get(n, 0) for n in range(len(edges) - 1)]
