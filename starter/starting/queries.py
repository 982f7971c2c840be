"""Queries: read the state of a workflow that may have no worker to answer, and tell whether it has one."""

import asyncio
import contextlib
import time
from datetime import timedelta
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError

from shared.lanes import task_queue
from shared.messages.placement import Layout, pack_workflow_id
from shared.settings import Settings
from shared.temporal.connect import describe_queue
from shared.temporal.deployment import find_taking, to_version
from shared.temporal.workflow_calls import find_workflow

QUERY_TIMEOUT = timedelta(seconds=5)

NO_ANSWER = (RPCError, TimeoutError, WorkflowQueryFailedError)
"""What `query` raises when no worker, or no server, answers."""

ROOM_BYTES = 8 * 1024 * 1024
ROOM_EVENTS = 4_000
"""Whoever repeats a start or signal adds to the history of a pack that no worker serves. By default, the server ends a
workflow with more than 50 MB, and all its messages with it, and refuses signals after 10,000."""

SERVED_SECONDS = 20.0
"""How long the answer about a queue's workers is cached."""


async def query(
    workflow: WorkflowHandle[Any, Any], name: str, *argument: Any, reject: QueryRejectCondition | None = None
) -> Any:
    """Query a workflow, for QUERY_TIMEOUT at most."""
    # the SDK repeats a query that timed out, so only an outer timeout limits it
    async with asyncio.timeout(QUERY_TIMEOUT.total_seconds()):
        return await workflow.query(name, *argument, reject_condition=reject)


async def query_or_none(workflow: WorkflowHandle[Any, Any], name: str) -> dict[str, Any] | None:
    """Give the answer of a query without argument, None when nobody gives one."""
    try:
        return await query(workflow, name)
    except NO_ANSWER:
        return None


class QueryRoom:
    """Limits the queries at once: half as many when one got no answer, one more for each that did (AIMD)."""

    def __init__(self, maximum: int, minimum: int = 2) -> None:
        self._maximum = maximum
        self._minimum = minimum
        self._at_once = maximum
        self._asking = 0
        self._changed = asyncio.Condition()

    async def query(
        self, workflow: WorkflowHandle[Any, Any], name: str, *argument: Any, reject: QueryRejectCondition | None = None
    ) -> Any:
        """`query` a workflow as soon as there is room."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._asking < self._at_once)
            self._asking += 1

        is_answered = True
        try:
            return await query(workflow, name, *argument, reject=reject)
        except NO_ANSWER:
            is_answered = False
            raise
        finally:
            self._asking -= 1
            self._at_once = (
                min(self._at_once + 1, self._maximum) if is_answered else max(self._at_once // 2, self._minimum)
            )
            async with self._changed:
                self._changed.notify_all()


class HistoryRoom:
    """Knows the packs to which nothing may be added, because they do not answer and their histories are full."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._prefix = settings.task_queue_prefix
        self._full: dict[str, str] = {}
        """By workflow id, why nothing more is sent."""
        self._served: dict[str, tuple[float, bool]] = {}
        """By task queue, when it was asked and whether it had workers."""
        self._asking = asyncio.Lock()

    async def find_obstacle(self, layout: Layout, index: int) -> str:
        """Say why nothing more may be sent to a pack; empty if it may.

        Others may have filled its history too, so the pack is looked at while its task queue has no worker.
        """
        pack_id = pack_workflow_id(layout.kind, index)
        if not await self._is_served(task_queue(self._prefix, layout.lane)):
            with contextlib.suppress(RPCError):  # the server does not answer: nothing is known
                await self._measure(pack_id)
        elif pack_id in self._full and not await self.look(pack_id) and pack_id in self._full:
            with contextlib.suppress(*NO_ANSWER):
                await query(self._client.get_workflow_handle(pack_id), "receipt", "")
                self._full.pop(pack_id, None)
        return self._full.get(pack_id, "")

    async def look(self, pack_id: str) -> str:
        """Look at a pack that did not answer; give its task queue if no worker serves it, else an empty text."""
        try:
            if (described := await self._measure(pack_id)) is None:
                return ""
            return "" if is_polled(await describe_queue(self._client, described.task_queue)) else described.task_queue
        except RPCError:  # the server does not answer either: nothing is known
            return ""

    async def _measure(self, pack_id: str) -> WorkflowExecutionDescription | None:
        described = await find_workflow(self._client, pack_id)
        if described is not None:
            self.note_size(described)
        return described

    def note_size(self, described: WorkflowExecutionDescription) -> None:
        """Note whether the history of a pack that did not answer has room."""
        pack_id = described.id
        size = described.raw_description.workflow_execution_info.history_size_bytes
        if described.close_time is None and (size > ROOM_BYTES or described.history_length > ROOM_EVENTS):
            waiting = f"{described.history_length} events of {size / 1e6:.1f} MB wait for it"
            self._full[pack_id] = f"its pack {pack_id} does not answer; {waiting}, so nothing is added until it does"
        else:
            self._full.pop(pack_id, None)

    async def _is_served(self, queue: str) -> bool:
        async with self._asking:  # many begin at once, and one call is enough for them
            asked_at, is_served = self._served.get(queue, (-SERVED_SECONDS, True))
            if time.monotonic() - asked_at >= SERVED_SECONDS:
                with contextlib.suppress(RPCError):  # the server does not answer: nothing is known
                    is_served = is_polled(await describe_queue(self._client, queue))
                self._served[queue] = time.monotonic(), is_served
        return is_served


def is_polled(queue: DescribeTaskQueueResponse) -> bool:
    """Return whether a worker that gets a queue's workflow tasks has polled it within the last minutes."""
    taking = find_taking(queue.versioning_info)
    return any(to_version(poller.deployment_options) in taking for poller in queue.pollers)
