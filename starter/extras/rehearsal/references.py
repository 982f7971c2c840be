"""Reference lines: how fresh copies could be for a number of visits, if the pages changed at known Poisson rates.

Sources of the formulas: J. Cho, H. Garcia-Molina, Effective Page Refresh Policies for Web Crawlers, ACM TODS 28(4),
2003, for freshness, age and the best frequencies; Y. Azar, E. Horvitz, E. Lubetzky, Y. Peres, D. Shahaf, Tractable
near-optimal policies for crawling, PNAS 115(32), 2018, for the form of the best rates under a budget: one price of a
visit for all pages, found by bisection.
"""

import math
from collections.abc import Callable, Mapping

from starter.extras.rehearsal.policies import FixedPolicy

Frequencies = dict[int, float]
"""Visits in the whole period of each page, by its number of changes in it."""


def freshness(changes: float, visits: float) -> float:
    """Give the share of time that a copy is current, for a Poisson page that is visited at a fixed interval.

    (1 - exp(-r)) / r, r = changes / visits: the mean number of changes between two visits.
    """
    if changes == 0:
        return 1.0
    return -math.expm1(-changes / visits) * visits / changes if visits else 0.0


def age(changes: float, visits: float) -> float:
    """Give the mean age of such a copy, as a share of the interval: 1/2 - 1/r + (1 - exp(-r)) / r²."""
    r = changes / visits
    return 0.5 - 1 / r - math.expm1(-r) / r**2


def share_evenly(pages: Mapping[int, int], budget: float) -> Frequencies:
    """Visit all pages equally often. `pages` counts pages by their changes, `budget` is visits of all together."""
    each = budget / sum(pages.values())
    return dict.fromkeys(pages, each)


def share_proportionally(pages: Mapping[int, int], budget: float) -> Frequencies:
    """Visit each page as often as it changes, times a factor that all have in common."""
    changes = sum(count * number for count, number in pages.items())
    return {count: budget * count / changes if changes else 0.0 for count in pages}


def share_optimally(pages: Mapping[int, int], budget: float) -> Frequencies:
    """Give the frequencies with the highest mean freshness.

    One more visit then brings the same gain for each page that is visited, (1 - (1 + r)·exp(-r)) / changes: the price.
    A page for which even the first visit brings less, because it changes too often, is not visited at all.
    """

    def frequencies(price: float) -> Frequencies:
        return {count: _find_frequency(count, price * count) for count in pages}

    def spend(found: Frequencies) -> float:
        return sum(pages[count] * visits for count, visits in found.items())

    if not any(pages):
        return dict.fromkeys(pages, 0.0)
    low, high = _bisect(lambda price: spend(frequencies(price)) > budget, 0.0, 1.0)
    much = frequencies(low)
    little = frequencies(high)
    # neighbouring prices may be far apart in visits, of pages that are hardly worth them; what lies between is as good
    between = (budget - spend(little)) / (spend(much) - spend(little)) if math.isfinite(spend(much)) else 0.0
    return {count: visits + between * (much[count] - visits) for count, visits in little.items()}


def _find_frequency(changes: int, gain: float) -> float:
    """Give the visits at which 1 - (1 + r)·exp(-r) is `gain`."""
    if changes == 0 or gain >= 1:
        return 0.0
    if gain <= 0:
        return math.inf
    return changes / _bisect(lambda r: -math.expm1(-r) - r * math.exp(-r) < gain, 0.0, 800.0)[1]


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Give two neighbouring numbers, of which the first is below what is sought and the second is not."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low, high


def expected_freshness(pages: Mapping[int, int], frequencies: Mapping[int, float]) -> float:
    """Give the mean freshness of all pages by the formula."""
    fresh = sum(number * freshness(count, frequencies[count]) for count, number in pages.items())
    return fresh / sum(pages.values())


def trace_optimum(pages: Mapping[int, int], minimum: float, maximum: float) -> list[tuple[float, float]]:
    """Give visits of all pages together, between two numbers, and the highest mean freshness for each."""
    found: list[tuple[float, float]] = []
    price = 1.0
    visits = 0.0
    while any(pages) and visits < maximum:
        frequencies = {count: _find_frequency(count, price * count) for count in pages}
        visits = sum(pages[count] * each for count, each in frequencies.items())
        if minimum <= visits <= maximum:
            found.append((visits, expected_freshness(pages, frequencies)))
        price *= 0.8

    return found


REFERENCES: Mapping[str, Callable[[Mapping[int, int], float], Frequencies]] = {
    "uniform": share_evenly,
    "proportional": share_proportionally,
    "optimum": share_optimally,
}


def make_policy(frequencies: Frequencies, length: int) -> FixedPolicy:
    """Make a policy of frequencies in a period of some microseconds."""
    intervals = {count: max(1, round(length / visits)) if visits else None for count, visits in frequencies.items()}
    return FixedPolicy(None, intervals)
