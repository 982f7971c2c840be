"""Slots for handlers at work in one process: taken many at once, because a semaphore would wake a batch for each."""

import asyncio
from collections import deque

SLOW_SHARE = 4
"""Slow calls may be so many times the quick ones: they only wait, and cost no more than the memory they hold."""


class CallSlots:
    """Slots for calls of handlers; batches that wait for some take turns, so that none of them waits for all others.

    A call that lasts longer than its batch waits gets a slot among the slow ones, so that slow calls keep no slot from
    quick ones, until there are `SLOW_SHARE` times as many of them.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._free_slow = count * SLOW_SHARE
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, count_max: int) -> int:
        """Take all slots that are free now, at most `count_max`; wait for one if there is none. Gives how many.

        Whoever is cancelled meanwhile has taken none.
        """
        if self._waiting or not self._free:
            await self._wait()

        taken = min(count_max, self._free)
        self._free -= taken
        self._wake_next()
        return taken

    def move_to_slow(self) -> bool:
        """Exchange a slot for one among the slow ones, if one is free; return whether it was."""
        if not self._free_slow:
            return False
        self._free_slow -= 1
        self.give_back(is_slow=False)
        return True

    def give_back(self, *, is_slow: bool) -> None:
        """Give one slot back."""
        if is_slow:
            self._free_slow += 1
            return
        self._free += 1
        self._wake_next()

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(turn)
            self._wake_next()
            raise
        self._waiting.popleft()

    def _wake_next(self) -> None:
        if self._free and self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)
