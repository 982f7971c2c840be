"""Wake: when a pack that sleeps has to run the first of its messages."""

import math
from collections.abc import Collection, Iterable

from shared.messages.placement import PackSpread
from shared.packs.entry import DUE, LATE, OTHERS, Entry, is_held, lane_of


def find_wake(entries: Iterable[Entry], lanes: Collection[str], default_lane: str, within: PackSpread) -> float:
    """Return when the first message on one of `lanes` can wait no longer, in seconds since the epoch."""
    coalesce = within.coalesce * 1000
    patience = within.patience
    is_default_open = default_lane in lanes

    # one list, not a generator: a pack does this several times a wake, with a thousand entries
    moments = [
        e[DUE] + (late if (late := e[LATE]) < coalesce else coalesce) * patience
        for e in entries
        if (is_default_open if len(e) <= OTHERS else lane_of(e, default_lane) in lanes and not is_held(e))
    ]
    return min(moments, default=math.inf) / 1000
