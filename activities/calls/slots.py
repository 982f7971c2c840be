"""Slots for handlers at work in one process: taken many at once, because a semaphore would wake a batch for each."""

import asyncio
from collections import deque


class CallSlots:
    """Slots for calls of handlers; batches that wait for some take turns, so that none of them waits for all others."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self, most: int) -> int:
        """Take all slots that are free now, at most `most`; wait for one if there is none. Gives how many were taken.

        Whoever is cancelled meanwhile has taken none.
        """
        if self._waiting or not self._free:
            await self._wait()
        taken = min(most, self._free)
        self._free -= taken
        self._wake_next()
        return taken

    def give_back(self) -> None:
        """Give one slot back."""
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
