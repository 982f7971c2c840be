"""Spends a lane's idle capacity: wakes the next due messages ahead of time, as fast as the lane can take them."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from activities.idle.due_index import SleepingWorkflow
from activities.idle.idle_check import IdleCheck
from activities.idle.pull_queue import PullQueue
from activities.idle.pull_rate import PullRate
from activities.idle.pull_status import PullStatus
from shared.errors import RetryLater
from shared.keepers.idle import PULL_AHEAD, SHIFT_SECONDS, IdleLimits, PullCounts
from shared.lanes import lane_of_queue
from shared.messages.signals import SIGNAL_NAMES, PullForward, PullMany
from shared.telemetry.metrics import EARLINESS
from shared.telemetry.sdk import Telemetry
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, is_missing, is_transient

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
BEAT_SECONDS = 1.0
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
        shift.status.pulled = PullCounts.load(pulled_before)
        with contextlib.suppress(asyncio.CancelledError):
            await shift.run(time.monotonic() + SHIFT_SECONDS)
        return shift.status.pulled.dump()


class PullLoop:
    """Looks and wakes for a while. Due work always comes first: as soon as anything waits, nothing is woken."""

    def __init__(self, client: Client, queue: str, limits: IdleLimits, telemetry: Telemetry) -> None:
        self._client = client
        self._limits = limits
        self._telemetry = telemetry
        self._labels = {"lane": lane_of_queue(queue)}
        self.status = PullStatus()
        self._rate = PullRate()
        self._check = IdleCheck(client, queue, limits, self._rate, self.status)
        self._queue = PullQueue(client, queue, limits, self._rate, self.status)

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
            activity.heartbeat({"pulled": self.status.pulled.dump(), "state": self.status.state})
            await asyncio.sleep(BEAT_SECONDS)

    async def _tick_or_wait(self) -> None:
        try:
            await self._tick()
        except (RPCError, RetryLater) as exc:
            if isinstance(exc, RPCError) and not is_transient(exc):
                raise
            self.status.failures += 1
            self.status.state = "waiting for the server"
            self._check.begin_anew()
            logger.warning("idle capacity is not spent", extra={"action": "idle_waits", "reason": str(exc)})
            await asyncio.sleep(backoff_seconds(self.status.failures))

    async def _tick(self) -> None:
        now = time.monotonic()
        if not await self._check.is_idle(now):
            self._queue.clear()
            return

        await self._queue.fill(now)
        self.status.state = "pulling" if self._queue.has_found else "nobody to wake"
        chosen = self._queue.take(self._rate.take(TICK_SECONDS, len(self._queue)))

        for first in range(0, len(chosen), SIGNALS_AT_ONCE):
            await asyncio.gather(*map(self._pull, chosen[first : first + SIGNALS_AT_ONCE]))

    async def _pull(self, sleeping: SleepingWorkflow) -> None:
        now = datetime.now(UTC)
        if sleeping.due_at <= now:
            return

        signal: PullForward | dict[str, Any] = PullForward(sleeping.due_at.isoformat())
        if sleeping.is_pack:
            until = self._queue.until.timestamp()
            signal = asdict(PullMany(self._limits.pack_messages, now.timestamp(), until, uuid.uuid4().hex))

        handle = self._client.get_workflow_handle(sleeping.workflow_id)
        try:
            await handle.signal(SIGNAL_NAMES[PullForward], signal, rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if not is_missing(exc):
                raise
            return

        self._queue.note_woken(sleeping)
        early = (sleeping.due_at - now).total_seconds()
        self._telemetry.record(EARLINESS, early, self._labels)
        self.status.pulled += PullCounts(int(not sleeping.is_pack), int(sleeping.is_pack), early)
