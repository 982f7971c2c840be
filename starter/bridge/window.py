"""The window: how many records a bridge holds, which follows from how many its starter has in hand."""

from functools import lru_cache

from starter.bridge.intake import IntakeLimits

FEWEST, MOST = 1_000, 100_000
"""Under way at once. The least keeps the starter from waiting for records, the most bounds the memory."""

PACK_ROOM = MOST * 4 // 5
"""Most of them are gathered for packs, the rest is on its way to them: a chunk costs as much as hundreds of messages."""

STEP = 100
"""The window follows in steps, because limits are checked anew whenever they change."""

WAITING = 5_000
"""At most so many wait behind them, read already: each takes several times the memory of one that is under way."""


def size_for(in_hand: int) -> int:
    """Say how many records may be under way when the starter has so many in hand: those, and a few to reach for.

    A starter takes what it has room for: a call each where a message has a workflow of its own, and a crowd where packs
    get theirs in large chunks. So memory follows from that, and neither from the lag nor from the pace.
    """
    return min(in_hand // STEP * STEP + FEWEST, MOST)


@lru_cache(maxsize=MOST // STEP)
def limits_of(in_flight: int) -> IntakeLimits:
    """Give limits for so many records under way, and a few more that wait."""
    share = in_flight // 2  # a partition that is slow leaves the others some room
    waiting = min(in_flight, WAITING)
    return IntakeLimits(
        in_flight_per_partition=share,
        in_flight=in_flight,
        partition_high=share + waiting,
        partition_low=share + waiting // 2,
        total_high=in_flight + waiting,
        total_low=in_flight + waiting // 2,
    )
