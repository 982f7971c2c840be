"""Calls to the server: many at once, at a rate that it can handle, each repeated until it is answered or refused."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Generic, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from shared.temporal.backoff import Patience
from shared.temporal.connect import CALL_TIMEOUT, is_transient, lacks_namespace

Answer = TypeVar("Answer")
_Called = tuple[Answer | RPCError, int]

DECREASE = 0.5
INCREASE_SHARE = 0.05  # of the rate before the last throttle, added each second: full rate again after ten seconds
COOLDOWN_SECONDS = 1.0  # one overload refuses many calls at once; they count as one throttle
WINDOW_SECONDS = 2.0
SLOWEST = 1.0
SAVED_SECONDS = 0.1  # an idle bucket saves no more than this, so that no burst follows a pause


class TaskPool(Generic[Answer]):
    """Runs calls concurrently and yields their results in the order in which they end."""

    def __init__(self, room: int) -> None:
        self._places = room
        self._room = asyncio.Semaphore(room)
        self._under_way: set[asyncio.Task[Answer]] = set()
        self._ended: asyncio.Queue[asyncio.Task[Answer] | None] = asyncio.Queue()

    @property
    def is_half_empty(self) -> bool:
        """At most half of the places are in use: the server answers faster than calls come."""
        return len(self._under_way) * 2 <= self._places

    async def submit(self, call: Coroutine[Any, Any, Answer]) -> None:
        """Begin a call as soon as there is room; its place becomes free when its result has been consumed."""
        try:
            await self._room.acquire()
        except BaseException:
            # a cancellation, or a loop that is closed: Python warns of a call that is neither begun nor closed; whoever
            # submits ends, and `results` cancels the calls under way
            call.close()
            raise

        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._ended.put_nowait)

    async def results(self, beginning: Coroutine[Any, Any, None]) -> AsyncGenerator[Answer]:
        """Yield results until `beginning`, which submits the calls, and all calls have ended; an error cancels them."""
        source = asyncio.create_task(beginning)
        source.add_done_callback(lambda _: self._ended.put_nowait(None))

        is_over = False
        try:
            while self._under_way or not is_over:
                task = await self._ended.get()
                if task is None:
                    is_over = True
                    await source
                    continue
                self._under_way.discard(task)
                self._room.release()
                yield task.result()
        finally:
            tasks: set[asyncio.Task[Any]] = {source, *self._under_way}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class RetryingCaller:
    """Makes calls, at most `calls_per_second` (0 = no limit), and repeats each for as long as `patience` allows."""

    def __init__(self, patience: timedelta, calls_per_second: float = 0.0) -> None:
        self._patience = patience
        self._limiter = RateLimiter(calls_per_second)
        self.throttled = 0
        """How often the server refused a call because it was at its limit."""
        self.retried = 0
        """How often a call was repeated for another reason."""

    async def call(self, send: Callable[[], Awaitable[Answer]], *, is_patient: bool = True) -> _Called[Answer]:
        """Call until the server answers or the patience is used up; gives the answer or the last error, and attempts.

        Unless `is_patient`, the call is repeated only while the server is starting.
        """
        span = self._patience if is_patient else timedelta()
        patience = Patience(span)
        is_starting = False

        while True:
            await self._limiter.take()

            try:
                answer = await send()
            except RPCError as exc:
                if not is_transient(exc):
                    self._limiter.note_answered()
                    return exc, patience.attempts

                if lacks_namespace(exc) and not is_starting:  # the server is starting: full patience again
                    patience.renew(self._patience)
                    is_starting = True

                if patience.is_over:
                    return exc, patience.attempts

                if exc.status is RPCStatusCode.RESOURCE_EXHAUSTED:
                    self.throttled += 1
                    self._limiter.note_throttled()
                else:
                    self.retried += 1

                await patience.wait()
            else:
                self._limiter.note_answered()
                return answer, patience.attempts

    async def call_service(self, method: Callable[..., Awaitable[Answer]], request: Any) -> _Called[Answer]:
        """`call` a method of the workflow service, without the SDK's own retries: they would hide a server's limit."""
        return await self.call(lambda: method(request, retry=False, timeout=CALL_TIMEOUT))


class RateLimiter:
    """Limits the rate of calls: a token bucket whose rate follows what the server can handle (AIMD).

    It starts at `ceiling` calls a second (0 = no limit), halves when the server is at its limit, and grows back by a
    fixed step. The server serves starts before polls: a starter that did not slow down would starve the workers.
    """

    def __init__(self, ceiling: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._ceiling = ceiling or math.inf
        self._floor = min(SLOWEST, self._ceiling)
        self._clock = clock
        self.rate = self._ceiling
        """Calls per second that may be sent now; infinite while nothing limits them."""
        self._step = 0.0
        self._next_at = clock()
        self._throttled_at = -math.inf
        self._grown_at = -math.inf
        self._answered: deque[float] = deque()
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait until the next call may be sent; callers are served in order, at the rate of that moment."""
        async with self._turn:
            while (seconds := self._next_at - self._clock()) > 0:  # noqa: ASYNC110 — a deadline, no condition to wait for
                await asyncio.sleep(seconds)  # then check again: a throttle may have moved the deadline
            now = self._clock()
            self._grow(now)
            self._next_at = max(self._next_at, now - SAVED_SECONDS) + 1 / self.rate

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
        before = max(min(self.rate, len(self._answered) / WINDOW_SECONDS), self._floor)
        self._step = max(before * INCREASE_SHARE, self._floor)
        self.rate = max(before * DECREASE, self._floor)
        self._throttled_at = self._grown_at = now
        self._next_at = now + 1 / self.rate

    def _grow(self, now: float) -> None:
        seconds = now - self._grown_at
        if self._step > 0 and self.rate < self._ceiling and seconds >= COOLDOWN_SECONDS:
            self.rate = min(self._ceiling, self.rate + self._step * seconds)
            self._grown_at = now

    def _forget_answers(self, now: float) -> None:
        while self._answered and self._answered[0] < now - WINDOW_SECONDS:
            self._answered.popleft()
