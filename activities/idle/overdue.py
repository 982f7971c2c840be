"""Overdue messages: what should have run long ago on a task queue, by the index, then by the messages themselves.

The index knows due times only roughly: a message writes there only when its due time moves by the setting `index_after`
within a run. So it is surely overdue only when twice that time has passed since its run began and since its indexed due
time. Each one found is then asked directly: its handler may be at work, or it may have ended or been paused meanwhile.
"""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.idle.due_index import LAST_SPAN, PAGE, SleepingWorkflow, WorkflowIndex, format_query_time
from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW
from shared.temporal.connect import translate_rpc_errors
from shared.temporal.search_attributes import DUE_AT, STATE
from shared.temporal.workflow_calls import find_workflow

COUNTS_MAX = 8
"""Counts of one query. After the first, each halves the range of ages, at first two minutes to ten years, by ratio. In
the end its limits differ by an eighth, and any page of what lies between them will do."""

CHECKED_MAX = 50  # candidates checked for one answer: a call each (not to the visibility store), for a pack a query too

CHECKED_AGAIN_AFTER = timedelta(minutes=5)
"""A workflow found not overdue is skipped for this time, so that it hides no others: handlers may be at work for hours,
and the index keeps the last due time of a pack in which nothing waits any more."""

QUERY_TIMEOUT = timedelta(seconds=5)

_NO_ANSWER = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.FAILED_PRECONDITION)
_RUNNING = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
_INDEXED = f"WorkflowType = '{MESSAGE_WORKFLOW}' AND DueAt < '{{moment}}' AND StartTime < '{{moment}}'"
_PACKED = f"WorkflowType = '{PACK_WORKFLOW}' AND DueAt < '{{moment}}'"
_UNINDEXED = f"WorkflowType IN ('{MESSAGE_WORKFLOW}', '{PACK_WORKFLOW}') AND DueAt IS NULL AND StartTime < '{{moment}}'"
"""Three queries, because a query with OR would not use the store's index of due times."""

UNINDEXED_TIMEOUT = timedelta(seconds=5)
UNINDEXED_EVERY = timedelta(minutes=10)  # seldom: SQLite reads a row of every running workflow to list these


class OverdueIndex(WorkflowIndex):
    """Finds what is overdue on one task queue; remembers workflows that it found not overdue."""

    def __init__(self, client: Client, task_queue: str, index_after: timedelta) -> None:
        super().__init__(client, task_queue)
        self._inexact = max(2 * index_after, timedelta(seconds=1))
        self._found_well: dict[str, datetime] = {}
        self._unindexed: Sequence[WorkflowExecution] = ()
        self._listed_unindexed_at: datetime | None = None

    async def find_oldest(self, wanted: int, now: datetime, beyond: timedelta = timedelta(0)) -> list[SleepingWorkflow]:
        """Give about `wanted` of those overdue by more than `beyond`, the longest overdue first; some may be older yet.

        Those overdue by less than twice the setting `index_after` are not found. Raises RetryLater and Misconfigured.
        """
        known = self._found_well.items()
        self._found_well = {name: at for name, at in known if now - at < CHECKED_AGAIN_AFTER}
        with translate_rpc_errors():
            latest = now - self._inexact - beyond
            indexed = [*await self._list_oldest(_INDEXED, latest), *await self._list_oldest(_PACKED, latest)]
            if self._listed_unindexed_at is None or now - self._listed_unindexed_at >= UNINDEXED_EVERY:
                self._listed_unindexed_at = now
                self._unindexed = await self._list_unindexed(latest)
            candidates = sorted([*indexed, *self._unindexed], key=self._find_latest)
            return await self._check(candidates, wanted, now, beyond)

    async def _list_unindexed(self, latest: datetime) -> Sequence[WorkflowExecution]:
        with contextlib.suppress(TimeoutError):  # it may, with millions of workflows; the others are found anyway
            async with asyncio.timeout(UNINDEXED_TIMEOUT.total_seconds()):
                return await self._list_oldest(_UNINDEXED, latest)
        return ()

    async def _list_oldest(self, query: str, latest: datetime) -> Sequence[WorkflowExecution]:
        """List a page of those before `latest`; if there are more, a page of the oldest."""
        moment = latest
        count = await self.count(_fill_in(query, latest))
        # ages, in multiples of self._inexact
        youngest = 1.0
        oldest = LAST_SPAN / self._inexact

        for _ in range(COUNTS_MAX - 1):
            if count <= PAGE:
                break
            factor = math.sqrt(youngest * oldest)
            earlier = latest - self._inexact * (factor - 1)
            if (before := await self.count(_fill_in(query, earlier))) > 0:
                youngest = factor
                count = before
                moment = earlier
            else:
                oldest = factor

        return await self.list_page(_fill_in(query, moment)) if count else ()

    async def _check(
        self, candidates: Sequence[WorkflowExecution], wanted: int, now: datetime, beyond: timedelta
    ) -> list[SleepingWorkflow]:
        unknown = [c.id for c in candidates if c.id not in self._found_well]
        checked = await asyncio.gather(*map(self._check_one, unknown[:CHECKED_MAX]))
        self._found_well |= {name: now for name, overdue in zip(unknown, checked, strict=False) if overdue is None}
        return sorted(overdue for overdue in checked if overdue is not None and now - overdue.due_at > beyond)[:wanted]

    async def _check_one(self, workflow_id: str) -> SleepingWorkflow | None:
        """Return since when a workflow is surely overdue; None if it has ended, is held, or its handler is at work."""
        described = await find_workflow(self._client, workflow_id)
        if described is None or described.status is not WorkflowExecutionStatus.RUNNING:
            return None
        if described.typed_search_attributes.get(STATE) not in ("active", HAS_PARKED):
            return None

        is_pack = described.workflow_type == PACK_WORKFLOW
        if is_pack:
            due_at = await self._query_pack(described)
        elif any(activity.state == _RUNNING for activity in described.raw_description.pending_activities):
            due_at = None
        else:
            due_at = self._find_latest(described)

        return None if due_at is None else SleepingWorkflow(due_at, workflow_id, is_pack)

    def _find_latest(self, workflow: WorkflowExecution | WorkflowExecutionDescription) -> datetime:
        """Return the latest time at which it was due, as far as the server knows."""
        due_at = workflow.typed_search_attributes.get(DUE_AT)
        if due_at is not None and workflow.workflow_type == PACK_WORKFLOW:  # a pack's due time holds across its runs
            return due_at + self._inexact
        return max(due_at or workflow.start_time, workflow.start_time) + self._inexact

    async def _query_pack(self, pack: WorkflowExecutionDescription) -> datetime | None:
        """Return when a pack's first message can wait no longer; if it does not answer, use the index."""
        handle = self._client.get_workflow_handle(pack.id, run_id=pack.run_id)
        try:
            # the SDK retries a query that timed out, so this limit is around all tries
            async with asyncio.timeout(QUERY_TIMEOUT.total_seconds()):
                answer: dict[str, Any] = await handle.query("overview")
        except (TimeoutError, WorkflowQueryFailedError, RPCError) as exc:
            if isinstance(exc, RPCError) and exc.status not in _NO_ANSWER:
                raise
            return self._find_latest(pack)

        if "waits_until" not in answer:  # a worker of an older version
            return self._find_latest(pack)
        return None if answer["waits_until"] is None else datetime.fromtimestamp(answer["waits_until"], UTC)


def _fill_in(query: str, moment: datetime) -> str:
    return query.format(moment=format_query_time(moment))
