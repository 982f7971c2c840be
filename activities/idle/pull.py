"""Spends a lane's idle capacity: wakes the next due messages ahead of time, as fast as the lane can take them."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from activities.idle.capacity import Capacity, Slots
from activities.idle.due_index import DueIndex, SleepingWorkflow
from activities.idle.recent_pulls import RecentPulls
from shared.errors import RetryLater
from shared.keepers.idle import PULL_AHEAD, SHIFT_SECONDS, IdleLimits, PullCounts
from shared.lanes import lane_of_queue
from shared.messages.signals import SIGNAL_NAMES, PullForward, PullMany
from shared.telemetry.metrics import EARLINESS
from shared.telemetry.sdk import Telemetry
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, is_missing, is_transient
from shared.temporal.workflow_calls import find_workflow

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
BEAT_SECONDS = 1.0
SLOTS_SECONDS = 1.0  # time between two readings of the workers' heartbeats, which come every two seconds
LOOK_SECONDS = 1.5  # between two looks into the index: five calls each, and a server allows a namespace ten a second
LOOK_MAX_SECONDS = 10.0  # longest time between two looks that found nothing

# factors of the rate: per heartbeat until something had to wait, per heartbeat from then on, and for each such wait
FASTER = 1.5
STEADIER = 1.15
SLOWER = 0.7
RATE_MAX = 300.0  # most wakes in a second; all wakes between two looks must fit one page of the index
SIGNALS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class PullActivities:
    """Holds what the calls of `pull_ahead` in one process share."""

    telemetry: Telemetry

    @activity.defn(name=PULL_AHEAD)
    async def pull_ahead(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Spend idle capacity for one shift, or until cancelled; gives the totals, with those of a broken-off try."""
        queue = activity.info().task_queue
        details = activity.info().heartbeat_details
        shift = PullLoop(activity.client(), queue, IdleLimits.load(call["limits"]), self.telemetry)
        pulled_before: Any = details[0]["pulled"] if details else {}
        shift.pulled = PullCounts.load(pulled_before)
        with contextlib.suppress(asyncio.CancelledError):
            await shift.run(time.monotonic() + SHIFT_SECONDS)
        return shift.pulled.dump()


class PullRate:
    """Wakes a second: first the slots free beyond the reserve, more while slots stay free, fewer when they don't."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._growth = FASTER
        self._saved = 0.0
        self._spent = 0
        self._told_at: datetime | None = None

    def follow(self, slots: Slots, reserve: float) -> None:
        """Adjust the rate to a heartbeat; a repeated one changes nothing."""
        if slots.told_at == self._told_at:
            return

        spent = self._spent
        self._spent = 0
        self._told_at = slots.told_at

        spare = slots.free - reserve * slots.all
        if spare <= 0:
            self.retreat()
        elif not self.rate:
            self.rate = spare
        elif spent >= self.rate and spare >= 0.5 * (1.0 - reserve) * slots.all:
            self.rate = min(max(spare, self.rate * self._growth), RATE_MAX)

    def retreat(self) -> None:
        """Lower the rate, because something had to wait."""
        self.rate = max(1.0, self.rate * SLOWER)
        self._saved = 0.0
        self._growth = STEADIER

    def take(self, seconds: float, wanted: int) -> int:
        """Give how many of those wanted may be woken now, `seconds` after the last call."""
        self._saved = min(self._saved + self.rate * seconds, max(self.rate, 1.0))
        count = min(int(self._saved), wanted)
        self._saved -= count
        self._spent += count
        return count


class PullLoop:
    """Looks and wakes for a while. Due work always comes first: as soon as anything waits, nothing is woken."""

    def __init__(self, client: Client, queue: str, limits: IdleLimits, telemetry: Telemetry) -> None:
        self._client = client
        self._limits = limits
        self._telemetry = telemetry
        self._labels = {"lane": lane_of_queue(queue)}
        self._index = DueIndex(client, queue)
        self._capacity = Capacity(client, queue)
        self._allowance = PullRate()
        self._waiting: deque[SleepingWorkflow] = deque()
        self._woken = RecentPulls()
        self._until = datetime.fromtimestamp(0, UTC)
        self._look_at = self._slots_at = 0.0
        self._look_seconds = LOOK_SECONDS
        self._has_found = False
        self._slots = Slots(0, 0, datetime.fromtimestamp(0, UTC))
        self._quiet_since: float | None = None
        self._busy_since = 0.0
        self._failures = 0  # calls since the last successful look
        self.pulled = PullCounts()
        self.state = "looking"  # for people, in the heartbeat

    async def run(self, ends_at: float) -> None:
        """Look and wake until `ends_at`, or until cancelled; waits while the server is away or at its limit."""
        beating = asyncio.create_task(self._beat())
        try:
            while time.monotonic() < ends_at:
                await self._tick_or_wait()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            activity.heartbeat({"pulled": self.pulled.dump(), "state": self.state})
            await asyncio.sleep(BEAT_SECONDS)

    async def _tick_or_wait(self) -> None:
        try:
            await self._tick()
        except (RPCError, RetryLater) as exc:
            if isinstance(exc, RPCError) and not is_transient(exc):
                raise
            self._failures += 1
            self.state = "waiting for the server"
            self._quiet_since = None
            logger.warning("idle capacity is not spent", extra={"action": "idle_waits", "reason": str(exc)})
            await asyncio.sleep(backoff_seconds(self._failures))

    async def _tick(self) -> None:
        now = time.monotonic()
        if not await self._is_idle(now):
            self._waiting.clear()
            return

        if not self._waiting and now >= self._look_at:
            await self._look(now)

        self.state = "pulling" if self._has_found else "nobody to wake"
        count = self._allowance.take(TICK_SECONDS, len(self._waiting))
        chosen = [self._waiting.popleft() for _ in range(count)]

        for first in range(0, count, SIGNALS_AT_ONCE):
            await asyncio.gather(*map(self._pull, chosen[first : first + SIGNALS_AT_ONCE]))

    async def _is_idle(self, now: float) -> bool:
        if now >= self._slots_at:
            self._slots = await self._capacity.read_slots()
            self._slots_at = now + SLOTS_SECONDS
            self._allowance.follow(self._slots, self._limits.reserve)

        if await self._capacity.read_backlog() > 0:
            if self._quiet_since is not None:
                self._allowance.retreat()
                self._busy_since = now
            self.state = "busy"
            self._quiet_since = None
            return False

        if self._slots.free <= self._limits.reserve * self._slots.all:
            self.state = "busy" if self._slots.all else "without a worker that tells of its slots"
            self._quiet_since = None
            return False

        if self._quiet_since is None:
            self._quiet_since = now
            if not self._failures:
                self.state = "looking"

        # a short wait, caused by waking too fast, needs no rest longer than the wait itself
        return now - self._quiet_since >= min(self._limits.quiet_seconds, self._quiet_since - self._busy_since)

    async def _look(self, now: float) -> None:
        wanted = max(20, round(self._allowance.rate * 2 * LOOK_SECONDS)) + self._woken.forget_old(now)
        found = await self._index.find_first(wanted, datetime.now(UTC))
        self._failures = 0
        undone = await self._find_undone(found, now)
        awake = {each.workflow_id for each in undone}
        due_of = self._woken.due_of

        fresh = sorted((due_at, s) for s in found if s.workflow_id not in awake and (due_at := due_of(s)) is not None)
        if fresh:
            self._until = self._reach_from(fresh[0][0], self._woken.first_undone(undone))

        self._waiting.extend(s for due_at, s in fresh if not s.is_pack or due_at <= self._until)
        self._has_found = bool(self._waiting)
        goes_on = self._has_found or self._index.is_searching
        self._look_seconds = LOOK_SECONDS if goes_on else min(self._look_seconds * 2, LOOK_MAX_SECONDS)
        self._look_at = now + self._look_seconds

    async def _find_undone(self, found: Sequence[SleepingWorkflow], now: float) -> list[SleepingWorkflow]:
        undone = list[SleepingWorkflow]()
        asked = self._woken.find_undone(found, now)
        for first in range(0, len(asked), SIGNALS_AT_ONCE):
            group = asked[first : first + SIGNALS_AT_ONCE]
            for pack, has_task in zip(group, await asyncio.gather(*map(self._has_task, group)), strict=True):
                if has_task:
                    undone.append(pack)
                else:
                    self._woken.note_done(pack)

        return undone

    async def _has_task(self, pack: SleepingWorkflow) -> bool:
        # a signal makes a workflow task in the same transaction; in the short lane it ends after the batch
        described = await find_workflow(self._client, pack.workflow_id)
        return described is not None and described.raw_description.HasField("pending_workflow_task")

    def _reach_from(self, due_at: datetime, undone: datetime | None) -> datetime:
        reach = timedelta(seconds=self._limits.reach_seconds)
        return due_at + reach if undone is None else min(due_at + reach, undone + 2 * reach)

    async def _pull(self, sleeping: SleepingWorkflow) -> None:
        now = datetime.now(UTC)
        if sleeping.due_at <= now:
            return

        signal: PullForward | dict[str, Any] = PullForward(sleeping.due_at.isoformat())
        if sleeping.is_pack:
            until = self._until.timestamp()
            signal = asdict(PullMany(self._limits.pack_messages, now.timestamp(), until, uuid.uuid4().hex))

        handle = self._client.get_workflow_handle(sleeping.workflow_id)
        try:
            await handle.signal(SIGNAL_NAMES[PullForward], signal, rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if not is_missing(exc):
                raise
            return

        until = self._until if sleeping.is_pack else None
        self._woken.note(sleeping, until)
        early = (sleeping.due_at - now).total_seconds()
        self._telemetry.record(EARLINESS, early, self._labels)
        self.pulled += PullCounts(int(not sleeping.is_pack), int(sleeping.is_pack), early)
