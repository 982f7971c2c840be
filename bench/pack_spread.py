"""How many messages are spread over packs of a size, with room for those that a hash fills fuller than others."""

from datetime import timedelta

from activities import Pack

ROOM = 1.4
"""Room of a pack, as a multiple of its average number of messages."""


def count_packs(messages: int, size: int) -> int:
    """Give how many packs the messages are in; 0 for a workflow each."""
    return max(1, messages // size) if size else 0


def spread_over_packs(messages: int, size: int, coalesce: timedelta) -> Pack | None:
    """Give the encoding of so many messages; None, a workflow each, for the size 0."""
    packs = count_packs(messages, size)
    return Pack(packs=packs, size=round(size * ROOM) + 20, coalesce=coalesce) if packs else None
