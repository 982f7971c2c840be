"""The due index: which sleeping messages of a task queue are due first, for callers with capacity to spare."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution

from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_errors
from shared.temporal.search_attributes import DUE_AT

PAGE = 1000  # most results that a visibility store gives in one page
CALLS_MAX = 5  # calls to the visibility store for one answer; a server allows a namespace ten a second in all
FIRST_SPAN = timedelta(minutes=10)
LAST_SPAN = timedelta(days=3660)
NARROWEST = timedelta(milliseconds=2)
WIDER = 10


@dataclass(frozen=True, slots=True, order=True)
class SleepingWorkflow:
    """A message that waits, or a pack, which stands for the first of its messages; `due_at` is as far as known."""

    due_at: datetime
    workflow_id: str
    is_pack: bool


class WorkflowIndex:
    """Counts and lists running messages and packs of a task queue, except held ones, in Temporal's visibility store."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client = client
        states = f"State IN ('active', '{HAS_PARKED}')"
        self._scope = f"ExecutionStatus = 'Running' AND TaskQueue = '{task_queue}' AND {states}"
        self.calls = 0  # number of calls to the visibility store

    async def count(self, query: str) -> int:
        """Count those that match a query. Raises RPCError."""
        self.calls += 1
        return (await self._client.count_workflows(f"{query} AND {self._scope}", rpc_timeout=CALL_TIMEOUT)).count

    async def list_page(self, query: str) -> list[WorkflowExecution]:
        """List those that match a query, at most a page of them, in any order. Raises RPCError."""
        self.calls += 1
        query = f"{query} AND {self._scope}"
        found = self._client.list_workflows(query, page_size=PAGE, limit=PAGE, rpc_timeout=CALL_TIMEOUT)
        return [execution async for execution in found]


class DueIndex(WorkflowIndex):
    """Searches the visibility store in windows of time, because that store neither sorts nor limits.

    A window begins now. Its end moves out until enough are counted in it, and is halved back until one page holds them.
    """

    def __init__(self, client: Client, task_queue: str) -> None:
        super().__init__(client, task_queue)
        self._span = FIRST_SPAN
        self._too_near: datetime | None = None
        self._too_far: datetime | None = None

    @property
    def is_searching(self) -> bool:
        """Whether the last answer was empty because the search takes longer: call again soon."""
        return self._too_far is not None

    async def find_first(self, wanted: int, now: datetime) -> list[SleepingWorkflow]:
        """Give about `wanted` of those due next that may run ahead of time at `now`, the earliest due first.

        Gives fewer, or none, if there are not as many, or if one call is too short to find them: then the next call
        continues the search. The answer may be out of date. Raises RetryLater while the index can't be read.
        """
        with translate_rpc_errors():
            for _ in range(CALLS_MAX - 1):
                query = self._to_query(now)
                if self._is_settled(await self.count(query), min(wanted, PAGE), now):
                    return await self._list(query, wanted, now)
        return []

    def _is_settled(self, count: int, wanted: int, now: datetime) -> bool:
        """Return whether the window can be listed; if not, its end has been changed."""
        end = now + self._span
        if wanted <= count <= PAGE or (count < wanted and self._span >= LAST_SPAN):
            return True

        if count > PAGE:
            self._too_far = end
        else:
            self._too_near = end

        near = max(self._too_near or now, now)
        far = self._too_far
        if far is None:
            self._span = min(self._span * WIDER, LAST_SPAN)
            return False

        if far - near < NARROWEST:  # more are due at one moment than a page holds: any of them will do
            return True

        self._span = near + (far - near) / 2 - now
        return False

    async def _list(self, query: str, wanted: int, now: datetime) -> list[SleepingWorkflow]:
        found = sorted(
            SleepingWorkflow(due_at, execution.id, execution.workflow_type == PACK_WORKFLOW)
            for execution in await self.list_page(query)
            if (due_at := execution.typed_search_attributes.get(DUE_AT)) is not None
        )
        self._too_near = self._too_far = None
        if len(found) > 2 * wanted:  # half of these may be gone at the next look
            self._span = found[2 * wanted].due_at - now
        return found[:wanted]

    def _to_query(self, now: datetime) -> str:
        return (
            f"WorkflowType IN ('{MESSAGE_WORKFLOW}', '{PACK_WORKFLOW}')"
            f" AND DueAt > '{format_query_time(now)}' AND DueAt <= '{format_query_time(now + self._span)}'"
            f" AND EarliestAt <= '{format_query_time(now)}'"
        )


def format_query_time(moment: datetime) -> str:
    """Write a moment for a visibility query."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
