"""Queries: read the state of a workflow that may have no worker to answer, and tell whether it has one."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError

from shared.temporal.deployment import find_taking, to_version

QUERY_TIMEOUT = timedelta(seconds=5)

NO_ANSWER = (RPCError, TimeoutError, WorkflowQueryFailedError)
"""What `query` raises when no worker, or no server, answers."""


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

    def __init__(self, most: int, least: int = 2) -> None:
        self._most, self._least = most, least
        self._at_once, self._asking = most, 0
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
            self._at_once = min(self._at_once + 1, self._most) if is_answered else max(self._at_once // 2, self._least)
            async with self._changed:
                self._changed.notify_all()


def is_polled(queue: DescribeTaskQueueResponse) -> bool:
    """Return whether a worker that gets a queue's workflow tasks has polled it within the last minutes."""
    taking = find_taking(queue.versioning_info)
    return any(to_version(poller.deployment_options) in taking for poller in queue.pollers)
