"""Queries: read the state of a workflow that may have no worker to answer."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError

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
