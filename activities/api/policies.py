"""Revisit policies: pure functions that turn what the visits so far have shown into the interval until the next one."""

import math
from dataclasses import dataclass
from datetime import timedelta

from shared.errors import InvalidSetting
from shared.messages.timespan import HORIZON

WEEK = timedelta(days=7)


def _require_rates(increase: float, decrease: float) -> None:
    _require(0 <= increase < math.inf, f"increase: is {increase}; give a share from 0 on")
    _require(0 <= decrease < 1, f"decrease: is {decrease}; give a share from 0 to below 1")


def _require(is_met: bool, problem: str) -> None:  # noqa: FBT001 — reads as what it is: a condition and its sentence
    if not is_met:
        raise InvalidSetting(problem)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The shortest and the longest interval a policy may give, between zero (excluded) and ten years."""

    shortest: timedelta
    longest: timedelta

    def __post_init__(self) -> None:
        """Raise InvalidSetting when no interval fits between the two."""
        _require(timedelta(0) < self.shortest, f"shortest: is {self.shortest}; give more than zero")
        _require(
            self.shortest <= self.longest <= HORIZON,
            f"longest: is {self.longest}; give at least shortest ({self.shortest}) and at most {HORIZON}",
        )

    def clamp(self, interval: timedelta) -> timedelta:
        """Give the nearest interval inside."""
        return min(max(interval, self.shortest), self.longest)

    def clamp_seconds(self, seconds: float) -> timedelta:
        """Give the nearest interval inside, also for seconds that no timedelta can hold."""
        longest = self.longest.total_seconds()
        return self.longest if seconds >= longest else self.clamp(timedelta(seconds=max(seconds, 0.0)))


@dataclass(frozen=True, slots=True)
class NutchRules:
    """Parameters of `nutch_adaptive`, with the values of Nutch's nutch-default.xml.

    Rates are shares of the interval. Nutch warns that rates above 0.4 make the interval swing without end.
    """

    increase: float = 0.4
    decrease: float = 0.2
    sync_rate: float = 0.3
    bounds: Bounds = Bounds(timedelta(seconds=60), timedelta(days=365))

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a rate that can't be."""
        _require_rates(self.increase, self.decrease)
        _require(0 <= self.sync_rate <= 1, f"sync_rate: is {self.sync_rate}; give a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class StormCrawlerRules:
    """Parameters of `stormcrawler_adaptive`, with StormCrawler's own values; rates are shares of the interval."""

    increase: float = 0.5
    decrease: float = 0.5
    bounds: Bounds = Bounds(timedelta(minutes=60), timedelta(days=14))

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a rate that can't be."""
        _require_rates(self.increase, self.decrease)


@dataclass(frozen=True, slots=True)
class EntryFrequencyRules:
    """Parameters of `entry_frequency`, with the values of Miniflux; `factor` is how many visits one entry is worth."""

    factor: float = 1.0
    bounds: Bounds = Bounds(timedelta(minutes=5), timedelta(hours=24))

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a factor that can't be."""
        _require(0 < self.factor < math.inf, f"factor: is {self.factor}; give a number above 0")


@dataclass(frozen=True, slots=True)
class PoissonRules:
    """Parameters of `poisson`: `target` is the probability that the next visit finds a change."""

    target: float = 0.5
    bounds: Bounds = Bounds(timedelta(seconds=60), timedelta(days=365))

    def __post_init__(self) -> None:
        """Raise InvalidSetting for a probability that can't be."""
        _require(0 < self.target < 1, f"target: is {self.target}; give a probability between 0 and 1")


def fixed(interval: timedelta, bounds: Bounds) -> timedelta:
    """Keep the same interval, whatever the visits show, within the bounds."""
    return bounds.clamp(interval)


def nutch_adaptive(
    interval: timedelta,
    *,
    is_changed: bool | None,
    unchanged_for: timedelta = timedelta(0),
    rules: NutchRules = NutchRules(),
) -> timedelta:
    """Shorten after a change, lengthen after none: I·(1 - decrease) or I·(1 + increase); None (no idea) keeps I.

    `unchanged_for`, the age of the last change seen, lifts the interval to at least that age, so a page that
    has not changed for long is visited less often; zero turns this off. A change sets it to zero.
    Source: Apache Nutch, AdaptiveFetchSchedule.
    """
    seconds = interval.total_seconds()
    if is_changed is not None:
        seconds *= 1 - rules.decrease if is_changed else 1 + rules.increase
    age = 0.0 if is_changed else unchanged_for.total_seconds()
    return rules.bounds.clamp_seconds(max(seconds, age))


def nutch_synchronized(
    interval: timedelta,
    unchanged_for: timedelta,
    rules: NutchRules = NutchRules(),
) -> timedelta:
    """Move the next visit towards the moment of change: the delay I - sync_rate·min(age of the last change, I).

    Nutch takes the whole age, which puts the next visit of a long unchanged page into the past; here `interval`
    limits the age. Source: Apache Nutch, AdaptiveFetchSchedule, sync_delta.
    """
    shift = min(max(unchanged_for, timedelta(0)), interval) * rules.sync_rate
    return rules.bounds.clamp(interval - shift)


def nutch_gone(
    interval: timedelta,
    rules: NutchRules = NutchRules(),
) -> timedelta:
    """Visit a vanished page less and less often: 1.5·I while that stays below the longest interval, then 0.9·longest.

    Source: Apache Nutch, AbstractFetchSchedule.
    """
    seconds, longest = interval.total_seconds() * 1.5, rules.bounds.longest.total_seconds()
    return rules.bounds.clamp_seconds(seconds if seconds < longest else 0.9 * longest)


def stormcrawler_adaptive(
    interval: timedelta,
    *,
    is_changed: bool,
    rules: StormCrawlerRules = StormCrawlerRules(),
) -> timedelta:
    """Approach the shortest interval after a change, lengthen after none.

    Changed: (1 - d)·I + d·shortest. Unchanged: min(longest, I·(1 + i)).
    Source: Apache StormCrawler, AdaptiveScheduler.
    """
    seconds, shortest = interval.total_seconds(), rules.bounds.shortest.total_seconds()
    if is_changed:
        return rules.bounds.clamp_seconds((1 - rules.decrease) * seconds + rules.decrease * shortest)
    return rules.bounds.clamp_seconds(seconds * (1 + rules.increase))


def entry_frequency(
    weekly_entries: float,
    *,
    hint: timedelta = timedelta(0),
    rules: EntryFrequencyRules = EntryFrequencyRules(),
) -> timedelta:
    """Visit a feed as often as it publishes: 7 days / (entries per week·factor), never before the server's `hint`.

    A feed without entries gets the longest interval. Source: Miniflux, entry_frequency scheduler.
    """
    _require(0 <= weekly_entries < math.inf, f"weekly_entries: is {weekly_entries}; give a number from 0 on")
    rate = weekly_entries * rules.factor
    seconds = WEEK.total_seconds() / rate if rate else math.inf
    return hold(rules.bounds.clamp_seconds(seconds), hint, rules.bounds)


def poisson(
    visits: int,
    changes: int,
    interval: timedelta,
    rules: PoissonRules = PoissonRules(),
) -> timedelta:
    """Choose the interval in which a change happens with probability `target`: -ln(1 - target) / λ.

    `changes` of the `visits`, made at regular `interval`s, found something new, and λ is the bias-reduced estimate
    -ln((visits - changes + 0.5) / (visits + 0.5)) / interval. No change so far gives the longest interval, no
    visit so far keeps the present one.
    Source: J. Cho, H. Garcia-Molina, Estimating Frequency of Change, ACM TOIT 3(3), 2003.
    """
    _require(0 <= changes <= visits, f"changes: is {changes} of {visits} visits; give a number from 0 to visits")
    if visits == 0:
        return rules.bounds.clamp(interval)
    changes_per_interval = -math.log((visits - changes + 0.5) / (visits + 0.5))
    if changes_per_interval <= 0:
        return rules.bounds.longest
    return rules.bounds.clamp_seconds(-math.log(1 - rules.target) / changes_per_interval * interval.total_seconds())


def hold(interval: timedelta, floor: timedelta, bounds: Bounds) -> timedelta:
    """Wait at least as long as a server's hint says, but never longer than the policy's longest interval."""
    return bounds.clamp(max(interval, floor))
