"""Windows: spans of start times that hold about equally many workflows, found by counting."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

FINEST = timedelta(seconds=1)
LOOKED_BACK = timedelta(days=1)
EPOCH = datetime(2015, 1, 1, tzinfo=UTC)  # earlier than the start of any workflow
NEAR = 0.1  # how far a cut may be from the exact one, as a share of what is cut


@dataclass(frozen=True, slots=True)
class Window:
    """Start times from `begin` up to but not including `end`; None is no bound."""

    begin: datetime | None = None
    end: datetime | None = None

    def narrow(self, query: str) -> str:
        """Give a visibility query with the window as a further condition."""
        bounds = ((">=", self.begin), ("<", self.end))
        return query + "".join(f" AND StartTime {sign} '{moment.isoformat()}'" for sign, moment in bounds if moment)


Count = Callable[[Window], Awaitable[int]]


async def cut_windows(count: Count, parts: int, now: datetime) -> list[Window]:
    """Cut all time into at most `parts` windows with about as many workflows each; a second is never cut."""
    total = await count(Window()) if parts > 1 else 0
    if total < parts or parts == 1:
        return [Window()]
    cuts = await _find_cuts(count, (await _find_first(count, now), now), (0, total), parts)
    # the last window has no end, so it includes messages that start meanwhile
    return [Window(begin, end) for begin, end in pairwise([None, *cuts, None])]


async def _find_first(count: Count, now: datetime) -> datetime:
    """Find a moment before which nothing started, going back in doubling steps."""
    back = LOOKED_BACK
    while (moment := now - back) > EPOCH:
        if await count(Window(end=moment)) == 0:
            return moment
        back *= 2
    return EPOCH


async def _find_cuts(
    count: Count, span: tuple[datetime, datetime], ranks: tuple[int, int], parts: int
) -> list[datetime]:
    """Find `parts` - 1 moments inside a span; `ranks` counts the workflows before its begin and before its end."""
    if parts == 1 or ranks[1] - ranks[0] < parts:
        return []

    left = parts // 2
    wanted = ranks[0] + (ranks[1] - ranks[0]) * left / parts
    low, high = span
    rank = ranks[0]
    moment = low

    while high - low > FINEST:
        moment = low + (high - low) / 2
        rank = await count(Window(end=moment))
        if abs(rank - wanted) <= NEAR * (ranks[1] - ranks[0]):
            break
        low, high = (moment, high) if rank < wanted else (low, moment)

    if rank in ranks:  # all of them started within a second
        return []

    before = await _find_cuts(count, (span[0], moment), (ranks[0], rank), left)
    after = await _find_cuts(count, (moment, span[1]), (rank, ranks[1]), parts - left)
    return [*before, moment, *after]
