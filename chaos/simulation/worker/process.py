"""Processes: a worker's process works, is stopped for a while, or is dead; what it sends takes a while."""

import asyncio
import random
from collections.abc import Callable

NETWORK_SECONDS = 0.01


class WorkerProcess:
    """One process, from its start to its death; moments are in virtual time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._stalled_until = 0.0
        self._hit_at = -1.0
        self.is_alive = True

    @property
    def is_working(self) -> bool:
        """Whether the process is alive and not stopped."""
        return self.is_alive and self._loop.time() >= self._stalled_until

    def was_hit_since(self, moment: float) -> bool:
        """Return whether the process was killed, stopped or at the end of its drain time after a moment."""
        return max(self._hit_at, self._stalled_until) >= moment

    def note_hit(self) -> None:
        """Record that a fault has hit what the process is at."""
        self._hit_at = self._loop.time()

    async def wait_while_stalled(self) -> None:
        """Wait while the process is stopped, or for ever if it is dead."""
        while self.is_alive and (left := self._stalled_until - self._loop.time()) > 0:  # noqa: ASYNC110 — it may change meanwhile
            await asyncio.sleep(left)
        if not self.is_alive:
            await self._loop.create_future()

    def stall(self, seconds: float) -> None:
        """Stop for a while."""
        self._stalled_until = self._loop.time() + seconds

    def resume(self) -> None:
        """Go on at once, if it is stopped."""
        if self._stalled_until > self._loop.time():
            self._stalled_until = self._loop.time()
            self.note_hit()

    def end(self) -> None:
        """Die by itself: from now on this process has no effect."""
        self.is_alive = False

    def send(self, act: Callable[[], None]) -> None:
        """Call `act` after a network delay, once the process is not stopped; never if it is dead by then."""

        def arrive() -> None:
            if self.is_alive and (left := self._stalled_until - self._loop.time()) > 0:
                self._loop.call_later(left + 1e-3, arrive)
            elif self.is_alive:
                act()

        self._loop.call_later(self._rng.uniform(0, NETWORK_SECONDS), arrive)
