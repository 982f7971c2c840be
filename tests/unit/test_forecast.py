"""The forecast without a server: round intervals, and when more is due than a lane can do."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from shared.messages.message import MessageState
from starter.insight.forecast import INTERVALS_MAX, LaneCapacity, choose_edges, find_overload
from workflows.description import count_due

BEGIN = datetime(2026, 11, 23, 18, 47, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0
TEN_A_SECOND = LaneCapacity(per_second=10.0, workers=1, measured=1)


@pytest.mark.parametrize(
    ("hours", "minutes"),
    [(0.5, 1), (1, 5), (3, 5), (24, 60), (48, 120), (24 * 7, 6 * 60), (24 * 366, 2 * 7 * 24 * 60)],
)
def test_intervals_begin_now_and_end_on_round_moments(hours: float, minutes: int) -> None:
    """People think in hours and days: the first interval is what is left of one, and the last covers what was asked."""
    edges = choose_edges(BEGIN, timedelta(hours=hours))
    lengths = {round(end - begin) for begin, end in pairwise(edges[1:])}

    assert edges[0] == BEGIN
    assert lengths == {minutes * 60}
    assert edges[1] % (minutes * 60) == 0
    assert edges[-2] < BEGIN + hours * HOUR <= edges[-1]
    assert len(edges) <= INTERVALS_MAX + 2


def test_what_is_due_at_a_moment_belongs_to_the_interval_that_begins_with_it() -> None:
    """So neighbours never count a message twice; who is held is due at no time."""
    states = [
        MessageState("feed", str(n), "short" if n < 4 else "long", due_at=due_at, earliest_at=0)
        for n, due_at in enumerate([5.0, 10.0, 19.9, 20.0, 30.0, 12.0])
    ]
    held = states[0]._replace(id="held", is_paused=True)

    assert count_due([*states, held], [10.0, 20.0, 30.0]) == {"short": [1, 3, 4], "long": [0, 1, 1]}


EDGES = [0.0, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR]


@pytest.mark.parametrize(
    "due",
    [
        [0, 0, 0, 0],
        [36_000, 36_000, 36_000, 36_000],
        [0, 36_500, 0, 0],  # half a minute late is nothing
    ],
)
def test_a_lane_that_can_do_it_is_not_warned_of(due: list[int]) -> None:
    """As much as it can do, or a little more, is no overload; and of a lane that nobody knows nothing can be said."""
    assert find_overload("short", EDGES, due, TEN_A_SECOND) is None
    assert find_overload("short", EDGES, [10**9] * 4, LaneCapacity(per_second=None)) is None


def test_an_overload_names_when_it_begins_how_late_it_makes_and_what_would_cure_it() -> None:
    """Twice what the lane can do in one hour, half of it in the next: at most 1 h late, clear half an hour after."""
    found = find_overload("short", EDGES, [10, 72_000, 18_000, 0], TEN_A_SECOND)

    assert found is not None
    assert (found.first, found.due, found.latest_seconds, found.factor) == (1, 90_000, HOUR, 2.0)
    assert found.clear_at == 3 * HOUR + 1800
    assert found.describe(EDGES) == (
        "lane short from 1970-01-01 01:00:00 UTC to 1970-01-01 02:00:00 UTC: more is due than the 10 messages a second "
        "that it can do; the last of 90,000 runs 1 h late, and all have run by 1970-01-01 03:30:00 UTC. "
        "Spread them over at least 2 h 30 min with a tolerance, or run 2.0 times as many workers"
    )


def test_an_overload_may_last_beyond_what_was_looked_at() -> None:
    """What is left at the end is worked off after it."""
    found = find_overload("short", EDGES, [0, 0, 0, 72_000], TEN_A_SECOND)

    assert found is not None
    assert (found.first, found.clear_at) == (3, 5 * HOUR)
