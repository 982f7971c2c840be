"""Pack queries: asks a pack for as long as it makes progress, and says why it does not answer."""

import asyncio
import math
import time
from typing import Any

from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowQueryRejectedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError

from shared.errors import PackNotServed, StandsStill
from shared.lanes import prefix_of
from shared.messages.placement import Layout, pack_workflow_id
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, describe_queue, is_missing
from starter.starting.queries import NO_ANSWER, HistoryRoom, QueryRoom, is_polled
from starter.steering.status.failing_workflows import to_standstill

PATIENCE_SECONDS = 20.0
"""How long a pack with workers may make no progress before PackNotServed is raised."""
TURN_SECONDS = 300.0
"""The same while a worker has the pack's task, or works on the tasks queued before it."""

ASKED_AT_ONCE = 16

Pack = tuple[Layout, int]

_NOTHING: dict[str, Any] = {"status": None, "moved_to": None, "messages": [], "missing": [], "moved": {}, "lanes": {}}
_NOTHING.update(dict.fromkeys(("count", "packs", "strays", "staying"), 0))
"""What a pack that does not exist, or has ended, would answer to any query."""


class PackBusy(PackNotServed):
    """A pack did not answer although workers serve it; it may answer later."""


class PackQueries:
    """Queries packs; raises PackNotServed within seconds if no worker serves one, StandsStill if its task fails."""

    def __init__(self, client: Client, settings: Settings, history: HistoryRoom) -> None:
        self._client = client
        self._settings = settings
        self._history = history
        self._room = QueryRoom(ASKED_AT_ONCE)

    async def ask(
        self, layout: Layout, index: int, question: str, *argument: Any, is_patient: bool = True
    ) -> dict[str, Any]:
        """Query, with at most one argument, until the pack answers, for as long as it makes progress, as in a batch.

        Unless `is_patient`, PackBusy is raised when it does not answer the first time.
        """
        name = pack_workflow_id(layout.kind, index)
        handle = self._client.get_workflow_handle(name)
        where = f"pack {name} on lane {layout.lane}"
        undecided_since = math.inf
        moved_at = time.monotonic()
        mark = None
        attempts = 0

        while True:
            has_answered, answer = await self._ask_once(handle, question, *argument)
            if answer is not None:
                return answer

            # what the pack was asked about has yet to reach it, or it has forgotten it
            undecided_since = min(undecided_since, time.monotonic()) if has_answered else math.inf
            if time.monotonic() - undecided_since >= self._settings.patience.total_seconds():
                raise PackBusy(f"{where} has it, but did not tell within {self._settings.patience} what became of it")

            before = mark
            mark, is_in_turn = await self._look(layout, handle)
            if mark is not None and mark != before:
                moved_at = time.monotonic()
            if not is_patient or time.monotonic() - moved_at >= (TURN_SECONDS if is_in_turn else PATIENCE_SECONDS):
                raise PackBusy(f"{where} does not answer; its workers are busy, or stuck")

            attempts += 1
            await asyncio.sleep(backoff_seconds(attempts))

    async def check_served(self, layout: Layout, index: int) -> None:
        """Raise PackNotServed where no worker has polled for minutes, as the server remembers, or StandsStill."""
        await self._look(layout, self._client.get_workflow_handle(pack_workflow_id(layout.kind, index)))

    async def _ask_once(
        self, handle: WorkflowHandle[Any, Any], question: str, *argument: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        """Query once; give whether the pack has answered, and what: None for a receipt that it does not have."""
        try:
            return True, await self._room.query(handle, question, *argument, reject=QueryRejectCondition.NOT_OPEN)
        except RPCError as exc:
            if is_missing(exc):
                return True, _NOTHING
        except WorkflowQueryRejectedError as exc:
            if exc.status != WorkflowExecutionStatus.CONTINUED_AS_NEW:  # then its next run is about to begin
                return True, _NOTHING  # ended from outside: its messages are no longer alive
        except NO_ANSWER:
            pass

        return False, None

    async def _look(self, layout: Layout, handle: WorkflowHandle[Any, Any]) -> tuple[tuple[str, int, int] | None, bool]:
        """Read a mark of a pack's progress, and whether it is in turn; raises PackNotServed or StandsStill.

        The mark (run id, history length, attempt) changes with any progress; it is None while the server does not
        answer. In turn: a worker has the pack's task or works on those before it, and this is the task's first attempt.
        """
        try:
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
            queue = await describe_queue(self._client, described.task_queue, report_stats=True)
            failing = await to_standstill(self._client, described)
            self._history.note_size(described)
        except RPCError:
            return None, False  # the caller's patience decides

        if not is_polled(queue):
            prefix = prefix_of(described.task_queue)
            raise PackNotServed(
                f"no worker of lane {layout.lane} serves pack {described.id}, and only the pack knows its messages; "
                f"start one (with worker versioning, of the current version): dormice worker --lane {layout.lane}"
                + ("" if prefix == self._settings.task_queue_prefix else f" --set task_queue_prefix={prefix}")
            )

        if failing is not None:
            raise StandsStill(failing.describe())

        task = described.raw_description.pending_workflow_task
        is_begun = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
        is_in_turn = task.attempt <= 1 and (is_begun or queue.stats.tasks_dispatch_rate > 0)
        return (described.run_id, described.history_length, task.attempt), is_in_turn
