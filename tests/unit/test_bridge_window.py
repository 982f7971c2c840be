"""The window: it opens with the pace, closes with it, and keeps its bounds."""

import pytest

from starter.bridge.window import FEWEST, MOST, PACE_SECONDS, WAITING, Window


@pytest.mark.parametrize(
    ("a_second", "in_flight"),
    [(0, FEWEST), (500, FEWEST), (700, 2_000), (1_500, 10_000), (10_500, MOST), (50_000, MOST)],
)
def test_as_much_is_under_way_as_ten_seconds_take(a_second: int, in_flight: int) -> None:
    """Beyond an easy pace and within bounds, at the pace of the last five seconds, whatever it was before."""
    window = Window()
    done = [7_000 + a_second * number for number in range(PACE_SECONDS + 1)]
    limits = [window.follow(count) for count in done][-1]

    assert limits.in_flight == in_flight
    assert limits.total_high - limits.in_flight == min(in_flight, WAITING)
    assert limits.partition_high < limits.total_high


def test_what_comes_in_bursts_keeps_it_open() -> None:
    """Packs answer for many messages at once, and then for none for a while."""
    window = Window()
    seen = [window.follow(7_500 * (second // PACE_SECONDS)).in_flight for second in range(4 * PACE_SECONDS)]

    assert min(seen[2 * PACE_SECONDS :]) == 10_000


@pytest.mark.parametrize("paused", [0, 60])
def test_it_opens_in_a_few_seconds_when_it_is_all_that_bounds_the_pace(paused: int) -> None:
    """Also after a pause. And it closes when nothing gets done any more."""
    window, done, seen = Window(), 0, [FEWEST]
    for _ in range(paused):
        window.follow(done)
    while seen[-1] < MOST:
        done += seen[-1]
        seen.append(window.follow(done).in_flight)

    assert len(seen) <= PACE_SECONDS
    assert [window.follow(done) for _ in range(PACE_SECONDS + 1)][-1].in_flight == FEWEST
