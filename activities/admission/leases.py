"""Leases: the rights to the calls of one key that may be at work at once, and who counts them."""

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from shared.keepers.limits import LEASE_MARGIN_SECONDS, EndedLease, Pace

PASS_ON_SECONDS = 1.0  # how long a call waits in this process for a lease that another call passes on
CLOCK_SECONDS = 3.0  # by how much this machine's clock may differ from the server's


class GrantedTurn(NamedTuple):
    """A turn: when it is, and the lease that comes with it."""

    slot: float
    lease: "Lease | None"  # None: the limit counts no calls at work


class LaterTurn(NamedTuple):
    """A place in line, and when to ask again."""

    position: float
    look_at: float


class Lease:
    """The right to one of the calls that may be at work; the next call of its key here may go on with it.

    Else each call would wait until the end of another had been told and answered, a quarter of a second or more.
    """

    def __init__(self, count: "Count", key: str, pace: Pace, until: float) -> None:
        self._count = count
        self._key = key
        self.pace = pace
        self.until = until
        self._usable_until = until - (pace.lease - LEASE_MARGIN_SECONDS) - CLOCK_SECONDS
        self._is_counted_alone = not pace.interval
        self.begun_at = time.monotonic()
        self._calls = 0
        self._passed_on = 0  # to calls that waited

    async def call(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Call a handler, then pass this on, or give it back."""
        try:
            return await function(*arguments)
        finally:
            self._calls += 1
            self.pass_on()

    def pass_on(self) -> None:
        """Let the next call of the key begin; without one, give this back with the next request."""
        if self.is_usable and self._count.wake_next(self._key, self.pace, self):
            self._passed_on += 1
        else:
            self._count.end_lease(self._key, self)

    @property
    def is_usable(self) -> bool:
        """Whether only calls at work are counted, and this lasts for another one."""
        return self._is_counted_alone and time.time() <= self._usable_until

    def to_end(self) -> EndedLease:
        """Give what the count is told when it gets this back."""
        seconds = (time.monotonic() - self.begun_at + self._count.late_seconds) / max(self._calls, 1)
        return EndedLease(self._key, self.until, round(seconds, 3), self._passed_on)


class Count(ABC):
    """Who may call: gives turns to the calls of this process, and passes leases on among them."""

    again_seconds = 0.0
    """In how many seconds a message asks again that got no answer."""

    late_seconds = 0.0
    """How long it takes until a lease that is given back is free for another."""

    def __init__(self) -> None:
        # a lease goes on to calls of the same pace only: others may be fewer at once, or take longer
        self._in_line: dict[tuple[str, Pace], deque[asyncio.Future[Lease]]] = {}

    @abstractmethod
    async def take_turn(self, key: str, pace: Pace, position: float) -> GrantedTurn | LaterTurn:
        """Give a call its turn or a place in line; raises TimeoutError if nobody can tell."""

    @abstractmethod
    def has_leases(self, key: str) -> bool:
        """Return whether this process holds leases of a key."""

    @abstractmethod
    def take_idle(self, key: str, pace: Pace) -> Lease | None:
        """Take a lease that is about to be given back; None if there is none that lasts for another call."""

    @abstractmethod
    def end_lease(self, key: str, lease: Lease) -> None:
        """Take a lease back that no call of this process goes on with."""

    def find_room(self, key: str) -> float:  # noqa: ARG002 — the shape of a count
        """Give how many calls of a key may wait in this process for a lease that is passed on."""
        return math.inf

    async def await_lease(self, key: str, pace: Pace) -> Lease | None:
        """Wait a little for a lease that a call of this process passes on; None if it holds none, or passes none on."""
        line = self._in_line.get((key, pace), ())
        if not self.has_leases(key) or len(line) >= self.find_room(key):
            return None

        turn: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        line = self._in_line.setdefault((key, pace), deque())
        line.append(turn)

        try:
            async with asyncio.timeout(PASS_ON_SECONDS):
                return await asyncio.shield(turn)
        except TimeoutError:
            return turn.result() if turn.done() else None
        except asyncio.CancelledError:
            if turn.done():
                turn.result().pass_on()
            raise
        finally:
            turn.cancel()  # so that nothing is passed on to nobody
            with contextlib.suppress(ValueError):  # it had its turn
                line.remove(turn)
            if not line and self._in_line.get((key, pace)) is line:
                del self._in_line[key, pace]

    def wake_next(self, key: str, pace: Pace, lease: Lease) -> bool:
        """Pass a lease on to the call that has waited for longest; return whether there was one."""
        line = self._in_line.get((key, pace), deque())
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(lease)
                return True
        self._in_line.pop((key, pace), None)
        return False
