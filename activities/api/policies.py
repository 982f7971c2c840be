"""Revisit policies: pure functions that turn what the visits so far have shown into the interval until the next one."""

import math
from dataclasses import dataclass
from datetime import timedelta

from shared.errors import InvalidSetting
from shared.messages.timespan import HORIZON


def _require(is_met: bool, problem: str) -> None:  # noqa: FBT001 — reads as what it is: a condition and its sentence
    if not is_met:
        raise InvalidSetting(problem)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The shortest and the longest interval a policy may give, between zero (excluded) and ten years."""

    shortest: timedelta
    longest: timedelta

    def __post_init__(self) -> None:
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
        return self.clamp(timedelta(seconds=min(max(seconds, 0.0), self.longest.total_seconds())))


@dataclass(frozen=True, slots=True)
class NutchRules:
    """Nutch's own rates, shares of the interval; it warns that above 0.4 they make the interval swing without end."""

    increase: float = 0.4
    decrease: float = 0.2
    bounds: Bounds = Bounds(timedelta(seconds=60), timedelta(days=365))

    def __post_init__(self) -> None:
        _require(0 <= self.increase < math.inf, f"increase: is {self.increase}; give a share from 0 on")
        _require(0 <= self.decrease < 1, f"decrease: is {self.decrease}; give a share from 0 to below 1")


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


def nutch_gone(interval: timedelta, rules: NutchRules = NutchRules()) -> timedelta:
    """Visit a vanished page less and less often: 1.5·I while that stays below the longest interval, then 0.9·longest.

    Source: Apache Nutch, AbstractFetchSchedule.
    """
    seconds = interval.total_seconds() * 1.5
    longest = rules.bounds.longest.total_seconds()
    bounded = seconds if seconds < longest else 0.9 * longest
    return rules.bounds.clamp_seconds(bounded)


def hold(interval: timedelta, floor: timedelta, bounds: Bounds) -> timedelta:
    """Wait at least as long as a server's hint says, but never longer than the policy's longest interval."""
    return bounds.clamp(max(interval, floor))
