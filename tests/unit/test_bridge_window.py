"""The window: it follows what the starter has in hand, and keeps its bounds."""

import pytest

from starter.bridge.window import PACK_ROOM, SIZE_MAX, SIZE_MIN, STEP, WAITING, limits_of, size_for


@pytest.mark.parametrize(
    ("in_hand", "size"),
    [
        (0, SIZE_MIN),
        (64, SIZE_MIN),
        (STEP, SIZE_MIN + STEP),
        (30_000, 30_000 + SIZE_MIN),
        (SIZE_MAX - SIZE_MIN, SIZE_MAX),
        (SIZE_MAX, SIZE_MAX),
    ],
)
def test_there_is_always_some_to_reach_for(in_hand: int, size: int) -> None:
    """A starter that takes a call each is given few, one that gathers for packs is given more as it takes more."""
    assert size_for(in_hand) == size


@pytest.mark.parametrize("size", [SIZE_MIN, 3 * SIZE_MIN, SIZE_MAX])
def test_few_wait_behind_those_under_way(size: int) -> None:
    """And one partition that is slow does not take all places."""
    limits = limits_of(size)

    assert limits.in_flight == size
    assert limits.total_high - limits.in_flight == min(size, WAITING)
    assert limits.in_flight_per_partition < size
    assert limits.partition_high < limits.total_high


def test_what_packs_are_gathered_for_fits() -> None:
    """Else the starter would wait for records that the window keeps from it, until it has idled for long enough."""
    assert PACK_ROOM + SIZE_MIN < SIZE_MAX
