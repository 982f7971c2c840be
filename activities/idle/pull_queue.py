"""The queue of sleeping workflows that may be woken ahead of time: read from the index, without those just woken."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio.client import Client

from activities.idle.due_index import DueIndex, SleepingWorkflow
from activities.idle.pull_rate import PullRate
from activities.idle.pull_status import PullStatus
from activities.idle.recent_pulls import RecentPulls
from shared.keepers.idle import IdleLimits
from shared.temporal.workflow_calls import find_workflow

LOOK_SECONDS = 1.5  # between two looks into the index: five calls each, and a server allows a namespace ten a second
LOOK_MAX_SECONDS = 10.0  # longest time between two looks that found nothing
CALLS_AT_ONCE = 16


class PullQueue:
    """Those of a lane that may be woken next, in the order of their due times."""

    def __init__(self, client: Client, queue: str, limits: IdleLimits, rate: PullRate, status: PullStatus) -> None:
        self._client = client
        self._limits = limits
        self._rate = rate
        self._status = status
        self._index = DueIndex(client, queue)
        self._woken = RecentPulls()
        self._waiting: deque[SleepingWorkflow] = deque()
        self._look_at = 0.0
        self._look_seconds = LOOK_SECONDS
        self.has_found = False
        """Whether the last look has found anybody."""
        self.until = datetime.fromtimestamp(0, UTC)
        """Packs are woken for what is due until then."""

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        """Forget who waits, because the lane has other work meanwhile."""
        self._waiting.clear()

    def take(self, count: int) -> list[SleepingWorkflow]:
        """Take the first ones out."""
        return [self._waiting.popleft() for _ in range(count)]

    def note_woken(self, sleeping: SleepingWorkflow) -> None:
        """Note that one was woken; a pack, for what is due until `until`."""
        until = self.until if sleeping.is_pack else None
        self._woken.note(sleeping, until)

    async def fill(self, now: float) -> None:
        """Look into the index if nobody waits and it is time to; `now` is on the monotonic clock.

        Raises RPCError and RetryLater while the server does not answer.
        """
        if self._waiting or now < self._look_at:
            return

        wanted = max(20, round(self._rate.rate * 2 * LOOK_SECONDS)) + self._woken.forget_old(now)
        found = await self._index.find_first(wanted, datetime.now(UTC))
        self._status.failures = 0
        undone = await self._find_undone(found, now)
        awake = {each.workflow_id for each in undone}
        due_of = self._woken.due_of

        fresh = sorted((due_at, s) for s in found if s.workflow_id not in awake and (due_at := due_of(s)) is not None)
        if fresh:
            self.until = self._reach_from(fresh[0][0], self._woken.first_undone(undone))

        self._waiting.extend(s for due_at, s in fresh if not s.is_pack or due_at <= self.until)
        self.has_found = bool(self._waiting)
        goes_on = self.has_found or self._index.is_searching
        self._look_seconds = LOOK_SECONDS if goes_on else min(self._look_seconds * 2, LOOK_MAX_SECONDS)
        self._look_at = now + self._look_seconds

    async def _find_undone(self, found: Sequence[SleepingWorkflow], now: float) -> list[SleepingWorkflow]:
        undone = list[SleepingWorkflow]()
        asked = self._woken.find_undone(found, now)
        for first in range(0, len(asked), CALLS_AT_ONCE):
            group = asked[first : first + CALLS_AT_ONCE]
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
