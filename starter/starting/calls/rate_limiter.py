"""The rate limiter of a starter: a token bucket whose rate follows what the server can handle (AIMD)."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

DECREASE = 0.5
INCREASE_SHARE = 0.05  # of the rate before the last throttle, added each second: full rate again after ten seconds
COOLDOWN_SECONDS = 1.0  # one overload refuses many calls at once; they count as one throttle
WINDOW_SECONDS = 2.0
SLOWEST = 1.0
SAVED_SECONDS = 0.1  # an idle bucket saves no more than this, so that no burst follows a pause


class RateLimiter:
    """Limits the rate of calls.

    The rate starts at `ceiling` calls a second (0 = no limit), halves when the server answers that it is at its
    limit, and grows back by a fixed step a second. The server serves starts before polls, so a starter that
    ignored those answers would starve the workers.
    """

    def __init__(self, ceiling: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._ceiling = ceiling or math.inf
        self._floor = min(SLOWEST, self._ceiling)
        self._clock = clock
        self._rate = self._ceiling
        self._step = 0.0
        self._next_at = clock()
        self._throttled_at = -math.inf
        self._grown_at = -math.inf
        self._answered: deque[float] = deque()
        self._turn = asyncio.Lock()

    @property
    def rate(self) -> float:
        """Calls per second that may be sent now; infinite while nothing limits them."""
        return self._rate

    async def take(self) -> None:
        """Wait until the next call may be sent; callers are served in order, at the rate of that moment."""
        async with self._turn:
            while (seconds := self._next_at - self._clock()) > 0:  # noqa: ASYNC110 — a deadline, no condition to wait for
                await asyncio.sleep(seconds)  # then check again: a throttle may have moved the deadline
            now = self._clock()
            self._grow(now)
            self._next_at = max(self._next_at, now - SAVED_SECONDS) + 1 / self._rate

    def note_answered(self) -> None:
        """Note that the server had room for a call, whatever its answer was."""
        now = self._clock()
        self._answered.append(now)
        self._forget_answers(now)

    def note_throttled(self) -> None:
        """Note that the server had no room, and halve the rate, once per overload."""
        now = self._clock()
        if now - self._throttled_at < COOLDOWN_SECONDS:
            return
        self._forget_answers(now)
        before = max(min(self._rate, len(self._answered) / WINDOW_SECONDS), self._floor)
        self._step = max(before * INCREASE_SHARE, self._floor)
        self._rate = max(before * DECREASE, self._floor)
        self._throttled_at = self._grown_at = now
        self._next_at = now + 1 / self._rate

    def _grow(self, now: float) -> None:
        seconds = now - self._grown_at
        if self._step > 0 and self._rate < self._ceiling and seconds >= COOLDOWN_SECONDS:
            self._rate = min(self._ceiling, self._rate + self._step * seconds)
            self._grown_at = now

    def _forget_answers(self, now: float) -> None:
        while self._answered and self._answered[0] < now - WINDOW_SECONDS:
            self._answered.popleft()
