"""The simulation: visits to one page after another by a policy, and exact sums of what they found.

Moments and durations are whole microseconds, and every sum is a whole number. So totals are the same in whatever order,
and in however many parts, the histories are worked on.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shared.messages.placement import unit_hash
from starter.extras.rehearsal.policies import (
    MICROSECOND,
    SHORTEST,
    START_INTERVAL,
    AdaptivePolicy,
    FixedPolicy,
    Policy,
    Visit,
)

HOUR = 3_600_000_000
SHORTEST_INTERVAL = SHORTEST // MICROSECOND

ChangeHistory = tuple[str, Sequence[int]]
"""The id of a page, and the moments at which it changed, in order and each once."""


@dataclass(frozen=True, slots=True)
class Period:
    """The time that is rehearsed, in microseconds since 1970: visits and changes in it, the beginning excluded.

    At `begin` every copy is current. Figures are of the time from `measured_from` on.
    """

    begin: int
    end: int
    measured_from: int

    @property
    def measured(self) -> int:
        """Microseconds that figures are of."""
        return self.end - self.measured_from

    @property
    def hours(self) -> int:
        """Hours that the measured time touches; the last one may be cut."""
        return -(-self.measured // HOUR)

    def cut(self, changes: Sequence[int]) -> Sequence[int]:
        """Give the changes inside."""
        first = bisect_right(changes, self.begin)
        last = bisect_left(changes, self.end)
        return changes[first:last]


@dataclass(frozen=True, slots=True)
class PacedPolicy:
    """A policy whose every interval is made longer by a factor, so that it keeps to a budget; 1 changes nothing."""

    policy: Policy
    factor: float = 1.0


@dataclass(slots=True)
class Totals:
    """What one policy came to, over some histories; whole numbers, so that totals of parts can be added."""

    hours: list[int]
    """Visits in each hour of the measured time."""
    histories: int = 0
    changes: int = 0
    visits: int = 0
    finds: int = 0
    """Visits that found a change."""
    seen: int = 0
    """Changes that a visit has found, as its latest or beneath a later one."""
    delay: int = 0
    """Microseconds from a change to the visit that found it, over all that were found."""
    stale: int = 0
    """Microseconds that copies were not current."""
    squares: int = 0
    """Twice the integral of the ages of copies, in square microseconds; the age of a current copy is 0."""

    @property
    def missed(self) -> int:
        """Changes never seen as their own: another change came before the next visit."""
        return self.seen - self.finds

    @property
    def unseen(self) -> int:
        """Changes that no visit had found at the end."""
        return self.changes - self.seen

    def add(self, other: "Totals") -> None:
        """Add the totals of other histories."""
        for name in TOTALS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.hours = [a + b for a, b in zip(self.hours, other.hours, strict=True)]

    def to_document(self) -> dict[str, Any]:
        """Give the fields, for JSON."""
        return asdict(self)


TOTALS = ("histories", "changes", "visits", "finds", "seen", "delay", "stale", "squares")


def rehearse_all(histories: Iterable[ChangeHistory], period: Period, policies: Sequence[PacedPolicy]) -> list[Totals]:
    """Let each policy visit each page for the whole period; gives the totals of each policy."""
    runs = [_Run(period, each) for each in policies]
    for name, changes in histories:
        inside = period.cut(changes)
        place = unit_hash(name)
        for run in runs:
            run.add(inside, place)
    return [run.totals for run in runs]


class _Run:
    """One policy at work; `totals` is what it came to so far."""

    def __init__(self, period: Period, paced: PacedPolicy) -> None:
        self.totals = Totals([0] * period.hours)
        self._period = period
        self._policy = paced.policy
        self._factor = paced.factor

    def add(self, changes: Sequence[int], place: float) -> None:
        """Visit one page; `place`, from 0 to 1, is where in its first interval the first visit is."""
        totals = self.totals
        totals.histories += 1
        totals.changes += len(changes) - bisect_left(changes, self._period.measured_from)

        if isinstance(self._policy, FixedPolicy):
            found = self._visit_regularly(self._policy, changes, place)
        else:
            found = self._visit_adaptively(self._policy, changes, place)

        done = 0
        for at, last in found:
            self._find(changes, done, last, at)
            done = last

        if done < len(changes):
            self._count_stale(changes[done], self._period.end)

    def _visit_regularly(self, policy: FixedPolicy, changes: Sequence[int], place: float) -> Iterator[tuple[int, int]]:
        """Give each visit that finds a change, and how many changes there are until then."""
        interval = policy.find_interval(len(changes))
        if interval is None:
            return

        step = max(SHORTEST_INTERVAL, int(interval * self._factor))
        first = self._period.begin + int(place * step)
        last = 0
        self._count_visits(first, step)

        while last < len(changes):
            at = first + max(0, -((first - changes[last]) // step)) * step
            if at >= self._period.end:
                return
            last = bisect_right(changes, at, last)
            yield at, last

    def _count_visits(self, first: int, step: int) -> None:
        begin = self._period.measured_from
        end = self._period.end
        hours = self.totals.hours
        first += max(0, -((first - begin) // step)) * step
        count = max(0, -((first - end) // step))
        self.totals.visits += count

        if step >= HOUR:
            for at in range(first - begin, end - begin, step):
                hours[at // HOUR] += 1
            return

        before = 0
        for hour in range(len(hours)):
            until = min(count, max(0, -((first - begin - (hour + 1) * HOUR) // step)))
            hours[hour] += until - before
            before = until

    def _visit_adaptively(
        self, policy: AdaptivePolicy, changes: Sequence[int], place: float
    ) -> Iterator[tuple[int, int]]:
        """Give each visit that finds a change, and how many changes there are until then."""
        begin = self._period.measured_from
        end = self._period.end
        factor = self._factor
        hours = self.totals.hours
        visit = Visit(START_INTERVAL, now=self._period.begin, begin=self._period.begin, last_found=self._period.begin)
        last = 0
        until = len(changes)
        visit.interval = policy.decide(visit)
        at = visit.now + int(place * max(SHORTEST_INTERVAL, int(visit.interval // MICROSECOND * factor)))
        upcoming = changes[0] if until else end

        while at < end:
            visit.now = at
            visit.visits += 1

            visit.is_changed = is_changed = upcoming <= at
            if is_changed:
                last = bisect_right(changes, at, last)
                upcoming = changes[last] if last < until else end
                visit.changes += 1
                visit.last_found = at
                visit.last_change = changes[last - 1]
                yield at, last

            if at >= begin:
                self.totals.visits += 1
                hours[(at - begin) // HOUR] += 1

            visit.interval = policy.decide(visit)
            at += max(SHORTEST_INTERVAL, int(visit.interval // MICROSECOND * factor))

    def _find(self, changes: Sequence[int], first: int, last: int, at: int) -> None:
        """Count what a visit finds: `changes[first:last]`."""
        self._count_stale(changes[first], at)
        begin = self._period.measured_from
        if changes[first] < begin:
            first = bisect_left(changes, begin, first, last)
        if first < last:
            self.totals.finds += 1
            self.totals.seen += last - first
            self.totals.delay += (last - first) * at - sum(changes[first:last])

    def _count_stale(self, since: int, until: int) -> None:
        begin = max(since, self._period.measured_from)
        if begin < until:
            self.totals.stale += until - begin
            self.totals.squares += (until - since) ** 2 - (begin - since) ** 2
