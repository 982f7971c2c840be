"""The due index: which of the sleeping messages of a task queue are due first, for whoever has capacity to spare.

Behind one small interface, because the server's visibility store is the simplest such index and not the only one thinkable.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error
from shared.temporal.search_attributes import DUE_AT

PAGE = 1000
"""The most that a visibility store gives in one page."""

CALLS_MAX = 5
"""Calls to the visibility store for one answer: a server allows ten a second in a namespace, for everybody together."""

FIRST_SPAN = timedelta(minutes=10)
LAST_SPAN = timedelta(days=3660)
NARROWEST = timedelta(milliseconds=2)
WIDER = 10


@dataclass(frozen=True, slots=True, order=True)
class Sleeper:
    """A workflow that sleeps: a message, or a pack by the first of its messages."""

    due_at: datetime
    workflow_id: str
    is_pack: bool


class DueIndex(Protocol):
    """Knows who is due first."""

    @property
    def is_searching(self) -> bool:
        """The last answer was none because finding them takes longer: ask again soon."""
        ...

    async def find_first(self, wanted: int, now: datetime) -> list[Sleeper]:
        """Give about `wanted` of those due next that may run ahead of time at `now`, the earliest due first.

        Fewer, also none, when there are not so many, or when finding them takes longer than one look: then the next
        call goes on from there. What it gives may be out of date. Raises RetryLater while it can't be asked.
        """
        ...


class VisibilityIndex:
    """Looks through Temporal's visibility store in windows of time, because that neither sorts nor limits.

    A window begins now. Its end moves out until enough are counted in it, and is halved back until one page holds them.
    """

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        self._task_queue = task_queue
        self._span = FIRST_SPAN
        self._too_near: datetime | None = None
        self._too_far: datetime | None = None
        self.calls = 0
        """How often the visibility store was asked, in all."""

    @property
    def is_searching(self) -> bool:
        """A window is being narrowed; see the interface."""
        return self._too_far is not None

    async def find_first(self, wanted: int, now: datetime) -> list[Sleeper]:
        """Give those due first; see the interface."""
        try:
            for _ in range(CALLS_MAX - 1):
                query = self._to_query(now)
                self.calls += 1
                count = (await self._client.count_workflows(query, rpc_timeout=CALL_TIMEOUT)).count
                if self._is_settled(count, min(wanted, PAGE), now):
                    return await self._list(query, wanted, now)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
        return []

    def _is_settled(self, count: int, wanted: int, now: datetime) -> bool:
        """Tell whether the window is to be listed; otherwise it has another end now."""
        end = now + self._span
        if wanted <= count <= PAGE or (count < wanted and self._span >= LAST_SPAN):
            return True
        if count > PAGE:
            self._too_far = end
        else:
            self._too_near = end
        near, far = max(self._too_near or now, now), self._too_far
        if far is None:
            self._span = min(self._span * WIDER, LAST_SPAN)
            return False
        if far - near < NARROWEST:  # more are due in one moment than a page holds: whichever it gives are as good
            return True
        self._span = near + (far - near) / 2 - now
        return False

    async def _list(self, query: str, wanted: int, now: datetime) -> list[Sleeper]:
        self.calls += 1
        executions = self._client.list_workflows(query, page_size=PAGE, limit=PAGE, rpc_timeout=CALL_TIMEOUT)
        found = [sleeper async for execution in executions if (sleeper := _to_sleeper(execution)) is not None]
        found.sort()
        self._too_near = self._too_far = None
        if len(found) > 2 * wanted:  # of the next window, half may have gone by then
            self._span = found[2 * wanted].due_at - now
        return found[:wanted]

    def _to_query(self, now: datetime) -> str:
        return (
            f"WorkflowType IN ('{MESSAGE_WORKFLOW}', '{PACK_WORKFLOW}') AND ExecutionStatus = 'Running'"
            f" AND TaskQueue = '{self._task_queue}' AND State IN ('active', '{HAS_PARKED}')"
            f" AND DueAt > '{format_query_time(now)}' AND DueAt <= '{format_query_time(now + self._span)}'"
            f" AND EarliestAt <= '{format_query_time(now)}'"
        )


def _to_sleeper(execution: WorkflowExecution) -> Sleeper | None:
    due_at = execution.typed_search_attributes.get(DUE_AT)
    is_pack = execution.workflow_type == PACK_WORKFLOW
    return None if due_at is None else Sleeper(due_at, execution.id, is_pack)


def format_query_time(moment: datetime) -> str:
    """Write a moment as a visibility query wants it."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
