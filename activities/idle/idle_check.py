"""The check whether a lane is idle, for which nothing may wait, some slots must be free, and both for a while."""

from datetime import UTC, datetime

from temporalio.client import Client

from activities.idle.capacity import Capacity, Slots
from activities.idle.pull_rate import PullRate
from activities.idle.pull_status import PullStatus
from shared.keepers.idle import IdleLimits

SLOTS_SECONDS = 1.0  # time between two readings of the workers' heartbeats, which come every two seconds


class IdleCheck:
    """Says whether a lane has capacity to spare, and lets the rate of pulls follow what it sees."""

    def __init__(self, client: Client, queue: str, limits: IdleLimits, rate: PullRate, status: PullStatus) -> None:
        self._limits = limits
        self._rate = rate
        self._status = status
        self._capacity = Capacity(client, queue)
        self._slots = Slots(0, 0, datetime.fromtimestamp(0, UTC))
        self._slots_at = 0.0
        self._quiet_since: float | None = None
        self._busy_since = 0.0

    async def is_idle(self, now: float) -> bool:
        """Look at the lane; `now` is on the monotonic clock. Raises RPCError while the server does not answer."""
        if now >= self._slots_at:
            self._slots = await self._capacity.read_slots()
            self._slots_at = now + SLOTS_SECONDS
            self._rate.follow(self._slots, self._limits.reserve)

        if await self._capacity.read_backlog() > 0:
            if self._quiet_since is not None:
                self._rate.retreat()
                self._busy_since = now
            self._status.state = "busy"
            self._quiet_since = None
            return False

        if self._slots.free <= self._limits.reserve * self._slots.all:
            self._status.state = "busy" if self._slots.all else "without a worker that tells of its slots"
            self._quiet_since = None
            return False

        if self._quiet_since is None:
            self._quiet_since = now
            if not self._status.failures:
                self._status.state = "looking"

        # a short wait, caused by waking too fast, needs no rest longer than the wait itself
        return now - self._quiet_since >= min(self._limits.quiet_seconds, self._quiet_since - self._busy_since)

    def begin_anew(self) -> None:
        """Forget for how long the lane has been quiet, because nobody has looked meanwhile."""
        self._quiet_since = None
