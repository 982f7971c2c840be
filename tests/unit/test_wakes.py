"""How many messages a wake runs, as the doctor reads it from a pack's entries, and when that is worth telling."""

from typing import Any

import pytest

from starter.insight.doctor.wakes import PackRhythm, find_short_tolerance

HOUR = 3600.0


def entry(came_back_at: float, interval: float, what: str = "again", **others: Any) -> list[Any]:
    """Make an entry whose last decision was at a moment, in seconds."""
    due = round((came_back_at + interval) * 1000)
    made = ["m", due, 0, 0, 1, None, [[round(interval * 1000), 0, what, 0, ""]]]
    return [*made, others] if others else made


def test_outcomes_that_follow_one_another_are_of_one_wake() -> None:
    """Three wakes a minute apart, of two messages each, whose outcomes are a tenth of a second apart."""
    entries = [entry(minute * 60 + part, HOUR) for minute in range(3) for part in (0.0, 0.1)]

    assert PackRhythm.of(entries) == PackRhythm(messages=6, interval=HOUR, in_wake=2.0)


def test_messages_that_have_not_come_back_tell_nothing() -> None:
    """Those that were only started, and those that are held, have no rhythm."""
    assert PackRhythm.of([entry(0, HOUR, "started"), entry(0, HOUR, is_paused=True)]) is None


@pytest.mark.parametrize(
    ("rhythm", "packs", "advice"),
    [
        (PackRhythm(1000, HOUR, 3.0), 100, "4 min"),  # 50 of 1,000 meet in the wait of three quarters of it
        (PackRhythm(1000, HOUR, 30.0), 100, ""),  # enough run already
        (PackRhythm(1000, HOUR, 3.0), 1, ""),  # a wake in eleven seconds costs nothing
        (PackRhythm(20, HOUR, 2.0), 1000, ""),  # few messages are in a pack: no tolerance brings more together
        (PackRhythm(1000, 0.0, 1.0), 100, ""),
    ],
)
def test_a_larger_tolerance_is_advised_where_it_helps(rhythm: PackRhythm, packs: int, advice: str) -> None:
    """It would bring three times as many together, and there are wakes enough to save."""
    found = find_short_tolerance("price", [rhythm], packs)

    if advice:
        assert found is not None
        assert found.about == "price"
        assert f"Again(tolerance=…) be {advice} " in found.remedy
        assert "a wake would run 50" in found.remedy
    else:
        assert found is None
