"""Queries: read the state of a workflow that may have no worker to answer."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

QUERY_TIMEOUT = timedelta(seconds=5)


async def query_or_none(query: Callable[..., Awaitable[Any]], name: str) -> dict[str, Any] | None:
    """Give the answer of a query without arguments, None when no worker answers within QUERY_TIMEOUT."""
    try:
        # the SDK repeats a query that timed out, so only an outer timeout limits it
        async with asyncio.timeout(QUERY_TIMEOUT.total_seconds()):
            return await query(name, result_type=dict[str, Any], rpc_timeout=QUERY_TIMEOUT)
    except (RPCError, TimeoutError, WorkflowQueryFailedError):
        return None
