"""What the revisit policies answer: values worked out by hand from each formula, and rules that hold for any input."""

import functools
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.api.policies import Bounds, NutchRules, hold, nutch_adaptive, nutch_gone
from examples.policies import entry_frequency, poisson, stormcrawler_adaptive
from shared.errors import InvalidSetting
from shared.messages.timespan import HORIZON

S, M, H, D = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
NARROW = Bounds(10 * S, 100 * S)

ANY_INTERVAL = st.timedeltas(min_value=timedelta.min, max_value=timedelta.max)
INSIDE = st.timedeltas(min_value=M, max_value=365 * D)
RATES = st.floats(min_value=0, max_value=0.99)


@st.composite
def any_bounds(draw: st.DrawFn) -> Bounds:
    """Draw bounds of every width, equal ends among them."""
    shortest = draw(st.timedeltas(min_value=timedelta(microseconds=1), max_value=HORIZON))
    return Bounds(shortest, draw(st.timedeltas(min_value=shortest, max_value=HORIZON)))


def is_within(interval: timedelta, bounds: Bounds) -> bool:
    """Say whether an interval respects the bounds."""
    return bounds.shortest <= interval <= bounds.longest


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(50 * S, 50 * S), (10 * S, 10 * S), (9 * S, 10 * S), (100 * S, 100 * S), (101 * S, 100 * S), (-S, 10 * S)],
)
def test_bounds_give_the_nearest_interval_inside(interval: timedelta, expected: timedelta) -> None:
    """A fixed rhythm is what was asked for, or the nearest bound."""
    actual = NARROW.clamp(interval)

    assert expected == actual


@pytest.mark.parametrize(
    ("interval", "is_changed", "unchanged_for", "rules", "expected"),
    [
        (100 * S, True, 0 * S, NutchRules(), 80 * S),  # 100·(1 - 0.2)
        (100 * S, False, 0 * S, NutchRules(), 140 * S),  # 100·(1 + 0.4)
        (100 * S, None, 0 * S, NutchRules(), 100 * S),
        (70 * S, True, 0 * S, NutchRules(), 60 * S),  # 56, clamped to Nutch's minute
        (300 * D, False, 0 * S, NutchRules(), 365 * D),  # 420 days, clamped to Nutch's year
        (100 * S, False, 0 * S, NutchRules(increase=0.2), 120 * S),
        (100 * S, True, 0 * S, NutchRules(decrease=0.5), 60 * S),
        (1 * D, False, 30 * D, NutchRules(), 30 * D),  # rests longer than 1.4 days: the interval follows
        (1 * D, False, 1 * D, NutchRules(), 1.4 * D),  # rests shorter: the factor decides
        (1 * D, None, 2 * D, NutchRules(), 2 * D),
        (1 * D, True, 30 * D, NutchRules(), 0.8 * D),  # a change ends the rest
        (50 * S, False, 0 * S, NutchRules(bounds=NARROW), 70 * S),
        (90 * S, False, 0 * S, NutchRules(bounds=NARROW), 100 * S),
        (11 * S, True, 0 * S, NutchRules(bounds=NARROW), 10 * S),
    ],
)
def test_nutch_adaptive_follows_its_formula(
    *, interval: timedelta, is_changed: bool | None, unchanged_for: timedelta, rules: NutchRules, expected: timedelta
) -> None:
    """Changed shortens by a fifth, unchanged lengthens by two fifths, within the bounds."""
    actual = nutch_adaptive(interval, is_changed=is_changed, unchanged_for=unchanged_for, rules=rules)

    assert expected == actual


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(100 * S, 150 * S), (D, 1.5 * D), (240 * D, 360 * D), (244 * D, 328.5 * D), (365 * D, 328.5 * D)],
)
def test_nutch_gone_visits_a_vanished_page_more_seldom(interval: timedelta, expected: timedelta) -> None:
    """Half as long again each time; what would pass the longest interval settles at nine tenths of it."""
    actual = nutch_gone(interval)

    assert expected == actual


@pytest.mark.parametrize(
    ("interval", "is_changed", "rates", "expected"),
    [
        (24 * H, True, {}, 12.5 * H),  # 0.5·24 + 0.5·1
        (24 * H, False, {}, 36 * H),  # 24·1.5
        (H, True, {}, H),  # asymptotic: never below the shortest
        (10 * D, False, {}, 14 * D),
        (100 * H, True, {"decrease": 0.2}, 80.2 * H),  # 0.8·100 + 0.2·1
        (100 * H, False, {"increase": 0.2}, 120 * H),
    ],
)
def test_stormcrawler_adaptive_follows_its_formula(
    *, interval: timedelta, is_changed: bool, rates: dict[str, Any], expected: timedelta
) -> None:
    """Changed goes half the way to the shortest interval, unchanged lengthens by half."""
    actual = stormcrawler_adaptive(interval, is_changed=is_changed, **rates)

    assert expected == actual


@pytest.mark.parametrize(
    ("weekly_entries", "hint", "factor", "expected"),
    [
        (168, 0 * S, 1, H),  # 168 hours a week
        (168, 0 * S, 2, 30 * M),
        (14, 0 * S, 1, 12 * H),
        (0, 0 * S, 1, 24 * H),
        (1, 0 * S, 1, 24 * H),  # 7 days, clamped
        (100_000, 0 * S, 1, 5 * M),  # 6 seconds, clamped
        (168, 3 * H, 1, 3 * H),  # the server's hint is a floor
        (168, 30 * M, 1, H),
        (168, 9 * D, 1, 24 * H),  # and the longest interval is above both
    ],
)
def test_entry_frequency_follows_its_formula(
    weekly_entries: float, hint: timedelta, factor: float, expected: timedelta
) -> None:
    """A feed is visited about once for each entry it publishes."""
    actual = entry_frequency(weekly_entries, hint=hint, factor=factor)

    assert expected == actual


@pytest.mark.parametrize(
    ("visits", "changes", "target", "expected_hours"),
    [
        # λ = -ln(5.5 / 10.5) = 0.646627 an hour, ln 2 / λ
        (10, 5, 0.5, 1.071943),
        # λ = -ln(0.5 / 10.5) = 3.044522 an hour: ten changes of ten are no infinite rate
        (10, 10, 0.5, 0.227670),
        # λ = -ln(9.5 / 10.5) = 0.100083 an hour
        (10, 1, 0.5, 6.925724),
        # -ln(1 - 0.63) = 0.994252
        (10, 5, 0.63, 1.537600),
        # λ = -ln(0.5 / 1.5) = 1.098612 an hour
        (1, 1, 0.5, 0.630930),
    ],
)
def test_poisson_follows_its_formula(visits: int, changes: int, target: float, expected_hours: float) -> None:
    """The interval is the one in which the estimated Poisson process changes with the target probability."""
    actual = poisson(visits, changes, H, target=target)

    assert math.isclose(expected_hours, actual / H, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("visits", "changes", "interval", "expected"),
    [
        (10, 0, H, 365 * D),  # nothing ever changed
        (0, 0, H, H),  # nothing is known
        (0, 0, S, M),
        (1000, 1000, S, M),
        (1000, 1, 300 * D, 365 * D),
    ],
)
def test_poisson_settles_at_its_bounds(visits: int, changes: int, interval: timedelta, expected: timedelta) -> None:
    """No change gives the longest interval, change at every visit the shortest, no visit the present one."""
    actual = poisson(visits, changes, interval)

    assert expected == actual


@pytest.mark.parametrize(
    ("interval", "floor", "expected"),
    [(50 * S, 0 * S, 50 * S), (50 * S, 70 * S, 70 * S), (50 * S, D, 100 * S), (S, 2 * S, 10 * S)],
)
def test_hold_lets_a_hint_lengthen_only(interval: timedelta, floor: timedelta, expected: timedelta) -> None:
    """A hint is a floor for the interval, and the longest interval a ceiling for the hint."""
    actual = hold(interval, floor, NARROW)

    assert expected == actual


@given(
    bounds=any_bounds(),
    interval=ANY_INTERVAL,
    other=ANY_INTERVAL,
    is_changed=st.sampled_from([True, False, None]),
    increase=RATES,
    decrease=RATES,
)
def test_every_policy_stays_within_its_bounds(
    *, bounds: Bounds, interval: timedelta, other: timedelta, is_changed: bool | None, increase: float, decrease: float
) -> None:
    """Whatever state a policy is given, even an impossible one, what it answers lies inside its bounds."""
    nutch = NutchRules(increase=increase, decrease=decrease, bounds=bounds)

    answers = [
        bounds.clamp(interval),
        nutch_adaptive(interval, is_changed=is_changed, unchanged_for=other, rules=nutch),
        nutch_gone(interval, nutch),
        stormcrawler_adaptive(
            interval, is_changed=bool(is_changed), increase=increase, decrease=decrease, bounds=bounds
        ),
        hold(interval, other, bounds),
    ]

    outside = [answer for answer in answers if not is_within(answer, bounds)]
    assert not outside


@given(any_bounds(), st.floats(min_value=0, allow_infinity=False), st.floats(min_value=1e-300, max_value=1e300))
def test_entry_frequency_stays_within_its_bounds(bounds: Bounds, weekly_entries: float, factor: float) -> None:
    """From no entry a week to more than a float's worth, the interval lies inside the bounds."""
    actual = entry_frequency(weekly_entries, factor=factor, bounds=bounds)

    assert is_within(actual, bounds)


@given(
    any_bounds(),
    st.integers(min_value=0, max_value=10**9),
    st.data(),
    ANY_INTERVAL,
    st.floats(min_value=1e-9, max_value=1 - 1e-9),
)
def test_poisson_stays_within_its_bounds(
    bounds: Bounds, visits: int, data: st.DataObject, interval: timedelta, target: float
) -> None:
    """For any history and target the interval lies inside the bounds."""
    changes = data.draw(st.integers(min_value=0, max_value=visits))

    actual = poisson(visits, changes, interval, target=target, bounds=bounds)

    assert is_within(actual, bounds)


@given(INSIDE, RATES, RATES)
def test_a_change_never_lengthens_and_rest_never_shortens(
    interval: timedelta, increase: float, decrease: float
) -> None:
    """Both adaptive policies move the interval the right way, or leave it at a bound."""
    nutch = NutchRules(increase=increase, decrease=decrease)
    storm = functools.partial(
        stormcrawler_adaptive, interval, increase=increase, decrease=decrease, bounds=nutch.bounds
    )

    assert nutch_adaptive(interval, is_changed=True, rules=nutch) <= interval
    assert nutch_adaptive(interval, is_changed=False, rules=nutch) >= interval
    assert nutch_adaptive(interval, is_changed=None, rules=nutch) == interval
    assert storm(is_changed=True) <= interval
    assert storm(is_changed=False) >= interval


@given(one=INSIDE, other=INSIDE, is_changed=st.booleans())
def test_a_longer_interval_stays_the_longer_one(*, one: timedelta, other: timedelta, is_changed: bool) -> None:
    """Adaptive policies keep the order of intervals, so no page overtakes another by the same observation."""
    shorter, longer = sorted((one, other))

    assert nutch_adaptive(shorter, is_changed=is_changed) <= nutch_adaptive(longer, is_changed=is_changed)
    assert stormcrawler_adaptive(shorter, is_changed=is_changed) <= stormcrawler_adaptive(longer, is_changed=is_changed)


@given(st.integers(min_value=1, max_value=10_000), st.data(), INSIDE)
def test_more_changes_never_lengthen_the_poisson_interval(
    visits: int, data: st.DataObject, interval: timedelta
) -> None:
    """Of two pages visited alike, the one that changed more often is visited at least as often."""
    fewer = data.draw(st.integers(min_value=0, max_value=visits - 1))
    more = data.draw(st.integers(min_value=fewer + 1, max_value=visits))

    assert poisson(visits, more, interval) <= poisson(visits, fewer, interval)


@given(st.floats(min_value=0, max_value=1e6), st.floats(min_value=0, max_value=1e6))
def test_more_entries_never_lengthen_the_interval(one: float, other: float) -> None:
    """Of two feeds, the one that publishes more is visited at least as often."""
    fewer, more = sorted((one, other))

    assert entry_frequency(more) <= entry_frequency(fewer)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Bounds(0 * S, S), "shortest: is 0:00:00; give more than zero"),
        (lambda: Bounds(2 * S, S), "longest: is 0:00:01; give at least shortest (0:00:02)"),
        (lambda: Bounds(S, HORIZON + S), "and at most 3653 days, 0:00:00"),
        (lambda: NutchRules(increase=-0.1), "increase: is -0.1; give a share from 0 on"),
        (lambda: NutchRules(increase=math.nan), "increase: is nan"),
        (lambda: NutchRules(decrease=1), "decrease: is 1; give a share from 0 to below 1"),
        (lambda: NutchRules(increase=math.inf), "increase: is inf"),
        (lambda: NutchRules(decrease=-1), "decrease: is -1"),
    ],
)
def test_impossible_parameters_are_refused(build: Callable[[], object], sentence: str) -> None:
    """A parameter no policy can use is refused with a sentence that names it."""
    with pytest.raises(InvalidSetting) as caught:
        build()

    assert sentence in str(caught.value)
