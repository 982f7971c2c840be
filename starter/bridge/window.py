"""The window: how many records a bridge holds, depending on how many its starter is working on."""

from functools import lru_cache

from starter.bridge.record_scheduler import InFlightLimits

SIZE_MIN = 1_000
SIZE_MAX = 100_000
"""Limits for records under way. The lower one keeps the starter busy, the upper one bounds the memory."""

PACK_ROOM = SIZE_MAX * 4 // 5
"""Limit of records gathered for large chunks, which cost least; the rest of the window is for those being sent."""

STEP = 100
"""The window changes in steps of this size, because every change has all limits checked again."""

WAITING = 5_000
"""Limit of decoded records that wait to begin: each takes several times the memory of one that is under way."""


def size_for(in_hand: int) -> int:
    """Say how many records may be under way: those `in_hand`, which the starter works on, and `SIZE_MIN` more.

    The starter takes only what it has room for, so memory depends on that room, and not on the lag or the pace.
    """
    return min(in_hand // STEP * STEP + SIZE_MIN, SIZE_MAX)


@lru_cache(maxsize=SIZE_MAX // STEP)
def limits_of(in_flight: int) -> InFlightLimits:
    """Give the limits for `in_flight` records under way, and for some more that wait."""
    share = in_flight // 2  # one slow partition leaves room for the others
    waiting = min(in_flight, WAITING)
    return InFlightLimits(
        in_flight_per_partition=share,
        in_flight=in_flight,
        partition_high=share + waiting,
        partition_low=share + waiting // 2,
        total_high=in_flight + waiting,
        total_low=in_flight + waiting // 2,
    )


class Window:
    """Follows how many records the starter is working on, which are those `in_hand`."""

    def __init__(self) -> None:
        self.in_hand = 0
        self._size = 0

    def find_change(self) -> InFlightLimits | None:
        """Give the limits for what is in hand now; None if they are as they were given last."""
        size = size_for(self.in_hand)
        if size == self._size:
            return None
        self._size = size
        return limits_of(size)
