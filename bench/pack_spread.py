"""How many messages are spread over packs of a size, with room for those that a hash fills fuller than others."""

import math
from datetime import timedelta

from activities import Pack
from shared.messages.encoding import SIZE_MAX

ROOM = 3.0
"""Room of a pack, as a multiple of its average number of messages, so that no kind grows while it is measured."""


def count_full_packs(messages: int, size: int) -> int:
    """Give how many packs the messages are in, a power of two, so that all hold as many; 0 for a workflow each."""
    return 1 << round(math.log2(max(1.0, messages / size))) if size else 0


def spread_over_packs(messages: int, size: int, coalesce: timedelta) -> Pack | None:
    """Give the encoding of so many messages; None, a workflow each, for the size 0."""
    packs = count_full_packs(messages, size)
    return Pack(packs=packs, size=min(round(size * ROOM), SIZE_MAX), coalesce=coalesce) if packs else None
