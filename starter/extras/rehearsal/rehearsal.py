"""The rehearsal: several policies side by side, kept to a budget, beside what the best ones could do for its price."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shared.errors import InvalidSetting
from shared.messages.placement import unit_hash
from shared.messages.timespan import HORIZON, format_exact
from starter.extras.rehearsal.history_file import ChangeHistories
from starter.extras.rehearsal.policies import MICROSECOND, Policy
from starter.extras.rehearsal.references import REFERENCES, make_policy
from starter.extras.rehearsal.simulation import HOUR, PacedPolicy, Period, Totals, rehearse_all

DAY = 24 * HOUR
SAMPLE_PAGES = 2_000
"""Pages on which the factor for a budget is sought before it is tried on all."""

FACTOR_STEPS = 30
USED_MIN = 0.998
"""The share of a budget that is used before a factor is good enough."""

FACTOR_MAX = 2.0**40
MARGINS = (0.0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
"""By how much less than the budget each try aims at, because the sample is not exactly like all pages."""


class Histories(Protocol):
    """All histories, wherever they are: in this process or in Spark."""

    def find_span(self) -> tuple[int, int] | None:
        """Give the first and the last change of all, None if no page ever changed."""
        ...

    def count_pages(self, period: Period) -> Counter[int]:
        """Count the pages by their changes inside the period."""
        ...

    def run(self, period: Period, policies: Sequence[PacedPolicy]) -> list[Totals]:
        """Give the totals of each policy over all pages."""
        ...

    def sample(self, share: float) -> ChangeHistories:
        """Give the pages that `is_sampled` picks; all where the share is 1 or more."""
        ...


def is_sampled(name: str, share: float) -> bool:
    """Whether a page is in a sample; by another hash than the one that places its first visit."""
    return unit_hash(f"sample {name}") < share


class LocalHistories:
    """Histories in the memory of this process."""

    def __init__(self, histories: ChangeHistories) -> None:
        self._histories = histories

    def find_span(self) -> tuple[int, int] | None:
        """See `Histories`."""
        spans = [(changes[0], changes[-1]) for _, changes in self._histories if changes]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

    def count_pages(self, period: Period) -> Counter[int]:
        """See `Histories`."""
        return Counter(len(period.cut(changes)) for _, changes in self._histories)

    def run(self, period: Period, policies: Sequence[PacedPolicy]) -> list[Totals]:
        """See `Histories`."""
        return rehearse_all(self._histories, period, policies)

    def sample(self, share: float) -> ChangeHistories:
        """See `Histories`."""
        if share >= 1:
            return self._histories
        return ChangeHistories({name: changes for name, changes in self._histories if is_sampled(name, share)})


@dataclass(frozen=True, slots=True)
class RehearsedPolicy:
    """What one policy came to; `factor` is by how much its intervals were made longer to keep to the budget."""

    name: str
    factor: float
    totals: Totals
    period: Period
    is_reference: bool = False

    @property
    def per_day(self) -> float:
        """Visits a day, of all pages."""
        return self.totals.visits * DAY / self.period.measured

    @property
    def freshness(self) -> float:
        """The share of time that a copy is current, of all pages."""
        return 1 - self.totals.stale / (self.totals.histories * self.period.measured)

    @property
    def age(self) -> float:
        """The mean age of a copy in seconds: the time since it stopped to be current, 0 while it is."""
        return self.totals.squares / (2 * self.totals.histories * self.period.measured) / 1e6

    @property
    def delay(self) -> float | None:
        """The mean seconds from a change to the visit that found it, of all that were found."""
        return self.totals.delay / self.totals.seen / 1e6 if self.totals.seen else None

    @property
    def missed(self) -> float:
        """The share of changes that were never seen as their own."""
        return self.totals.missed / self.totals.changes if self.totals.changes else 0.0

    @property
    def unseen(self) -> float:
        """The share of changes that no visit had found at the end."""
        return self.totals.unseen / self.totals.changes if self.totals.changes else 0.0

    @property
    def finds(self) -> float:
        """The share of visits that found a change."""
        return self.totals.finds / self.totals.visits if self.totals.visits else 0.0

    def to_document(self) -> dict[str, Any]:
        """Give it as an object for JSON."""
        return {
            "policy": self.name,
            "is_reference": self.is_reference,
            "interval_factor": self.factor,
            "visits": self.totals.visits,
            "visits_per_day": self.per_day,
            "visits_with_change_share": self.finds,
            "freshness": self.freshness,
            "mean_age_seconds": self.age,
            "mean_delay_seconds": self.delay,
            "changes": self.totals.changes,
            "missed": self.totals.missed,
            "unseen": self.totals.unseen,
            "busiest_hour_visits": max(self.totals.hours),
            "visits_by_hour": self.totals.hours,
        }


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Several policies side by side. `pages` counts pages by their changes in the period."""

    period: Period
    pages: Mapping[int, int]
    policies: Sequence[RehearsedPolicy]
    budget: int | None = None

    def to_document(self) -> dict[str, Any]:
        """Give it as an object for JSON."""
        period = self.period
        return {
            "from": format_exact(period.begin / 1e6),
            "until": format_exact(period.end / 1e6),
            "measured_from": format_exact(period.measured_from / 1e6),
            "pages": sum(self.pages.values()),
            "pages_without_change": self.pages.get(0, 0),
            "changes": sum(count * number for count, number in self.pages.items()),
            "budget": self.budget,
            "policies": [each.to_document() for each in self.policies],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """What is rehearsed. Moments and durations in microseconds; the budget is visits, in a day or in all."""

    policies: Mapping[str, Policy]
    begin: int | None = None
    end: int | None = None
    warm_up: int = 0
    budget: int | None = None
    is_daily: bool = False

    def choose_period(self, span: tuple[int, int] | None) -> Period:
        """Give the period: as asked for, else the whole hours in which all changes lie. Raises InvalidSetting."""
        if span is None and (self.begin is None or self.end is None):
            raise InvalidSetting("no page ever changed; say with --from and --until what is to be rehearsed")

        first, last = span or (0, 0)
        begin = (first - 1) // HOUR * HOUR if self.begin is None else self.begin

        end = (last // HOUR + 1) * HOUR if self.end is None else self.end
        if not begin < end <= begin + HORIZON // MICROSECOND:
            raise InvalidSetting(
                f"--from: {format_exact(begin / 1e6)} to {format_exact(end / 1e6)} is no time to rehearse; "
                f"give a beginning before the end, and at most {HORIZON.days} d before it"
            )

        if begin + self.warm_up >= end:
            raise InvalidSetting("--warm-up: leaves no time to measure; give less than lies between --from and --until")
        return Period(begin, end, begin + self.warm_up)

    def find_budget(self, period: Period) -> int | None:
        """Give the visits that each policy may make in the measured time. Raises InvalidSetting."""
        if self.budget is None or not self.is_daily:
            return self.budget
        if not (visits := self.budget * period.measured // DAY):
            raise InvalidSetting(f"--budget: {self.budget}/day is no visit in the time that is measured; give more")
        return visits


def rehearse(histories: Histories, options: RehearsalOptions) -> Rehearsal:
    """Rehearse each policy, then the references: with the budget, else with as many visits as the first policy made."""
    period = options.choose_period(histories.find_span())
    budget = options.find_budget(period)
    pages = histories.count_pages(period)
    pacing = _Pacing(histories, period, sum(pages.values()))
    found = pacing.run(options.policies, budget)
    allowed = found[0].totals.visits if budget is None else budget
    length = period.end - period.begin
    shared = {name: share(pages, allowed * length / period.measured) for name, share in REFERENCES.items()}
    references = {name: make_policy(frequencies, length) for name, frequencies in shared.items()}
    found += pacing.run(references, budget, is_reference=True)

    return Rehearsal(period, pages, found, budget)


@dataclass(slots=True)
class _Pacing:
    """Runs policies, those that make too many visits again with longer intervals, until all keep to the budget."""

    histories: Histories
    period: Period
    pages: int
    _sample: ChangeHistories | None = field(default=None, init=False)

    def run(
        self, policies: Mapping[str, Policy], budget: int | None, *, is_reference: bool = False
    ) -> list[RehearsedPolicy]:
        paced = {name: PacedPolicy(policy) for name, policy in policies.items()}
        totals = self._run(paced)

        for margin in MARGINS:
            over = {name: each.visits for name, each in totals.items() if budget is not None and each.visits > budget}
            if not over or budget is None:
                break
            slower = {
                name: self._slow_down(paced[name], (1 - margin) * budget / visits) for name, visits in over.items()
            }
            paced |= slower
            totals |= self._run(slower)

        return [RehearsedPolicy(name, paced[name].factor, totals[name], self.period, is_reference) for name in policies]

    def _run(self, paced: Mapping[str, PacedPolicy]) -> dict[str, Totals]:
        return dict(zip(paced, self.histories.run(self.period, [*paced.values()]), strict=True))

    def _slow_down(self, paced: PacedPolicy, share: float) -> PacedPolicy:
        """Find a greater factor, with which the sample makes this share of its present visits and hardly fewer."""
        if self._sample is None:
            self._sample = self.histories.sample(SAMPLE_PAGES / self.pages)
        sample = self._sample

        def count(factor: float) -> int:
            return rehearse_all(sample, self.period, [PacedPolicy(paced.policy, factor)])[0].visits

        allowed = share * count(paced.factor)
        low = paced.factor
        high = 2 * paced.factor
        while (visits := count(high)) > allowed and high < FACTOR_MAX:
            low = high
            high = high * 2
        for _ in range(FACTOR_STEPS):
            if visits >= USED_MIN * allowed:
                break
            middle = (low + high) / 2
            if (tried := count(middle)) > allowed:
                low = middle
            else:
                high = middle
                visits = tried
        return PacedPolicy(paced.policy, high)
