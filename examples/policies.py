"""Revisit policies beside those of `activities.api.policies`: formulas of other crawlers, to copy into a handler."""

import math
from datetime import timedelta

from activities.api.policies import Bounds, hold

STORMCRAWLER_BOUNDS = Bounds(timedelta(hours=1), timedelta(days=14))
MINIFLUX_BOUNDS = Bounds(timedelta(minutes=5), timedelta(days=1))
POISSON_BOUNDS = Bounds(timedelta(minutes=1), timedelta(days=365))


def stormcrawler_adaptive(
    interval: timedelta,
    *,
    is_changed: bool,
    increase: float = 0.5,
    decrease: float = 0.5,
    bounds: Bounds = STORMCRAWLER_BOUNDS,
) -> timedelta:
    """Approach the shortest interval after a change, lengthen after none.

    Changed: (1 - decrease)·I + decrease·shortest. Unchanged: I·(1 + increase).
    Source: Apache StormCrawler, AdaptiveScheduler.
    """
    seconds = interval.total_seconds()
    shortest = bounds.shortest.total_seconds()
    if is_changed:
        return bounds.clamp_seconds((1 - decrease) * seconds + decrease * shortest)

    return bounds.clamp_seconds(seconds * (1 + increase))


def entry_frequency(
    weekly_entries: float,
    *,
    hint: timedelta = timedelta(0),
    factor: float = 1.0,
    bounds: Bounds = MINIFLUX_BOUNDS,
) -> timedelta:
    """Visit a feed as often as it publishes: 7 days / (entries per week·factor), never before the server's `hint`.

    A feed without entries gets the longest interval. Source: Miniflux, entry_frequency scheduler.
    """
    rate = weekly_entries * factor
    seconds = timedelta(days=7).total_seconds() / rate if rate else math.inf
    return hold(bounds.clamp_seconds(seconds), hint, bounds)


def poisson(
    visits: int, changes: int, interval: timedelta, *, target: float = 0.5, bounds: Bounds = POISSON_BOUNDS
) -> timedelta:
    """Choose the interval in which a change happens with probability `target`: -ln(1 - target) / λ.

    `changes` of the `visits`, made at regular `interval`s, found something new, and λ is the bias-reduced estimate
    -ln((visits - changes + 0.5) / (visits + 0.5)) / interval. No change so far gives the longest interval, no
    visit so far keeps the present one.
    Source: J. Cho, H. Garcia-Molina, Estimating Frequency of Change, ACM TOIT 3(3), 2003.
    """
    if visits == 0:
        return bounds.clamp(interval)
    changes_per_interval = -math.log((visits - changes + 0.5) / (visits + 0.5))
    if changes_per_interval <= 0:
        return bounds.longest

    return bounds.clamp_seconds(-math.log(1 - target) / changes_per_interval * interval.total_seconds())
