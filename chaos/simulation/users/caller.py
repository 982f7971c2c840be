"""The calls of users: what is lost on its way is sent again, until it is answered."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError

from chaos.simulation.server.client import SimulatedClient
from shared.temporal.backoff import backoff_seconds

QUERY_SECONDS = 5.0


class UserCaller:
    """Calls the server, or a workflow, with patience."""

    def __init__(self, client: SimulatedClient) -> None:
        self.client = client

    async def signal(self, name: str, signal: str, argument: Any) -> None:
        """Signal a workflow; raises RPCError if it does not exist."""
        await self.repeat(lambda: self.client.signal(name, signal, [argument]))

    async def query(self, name: str, query: str, *arguments: Any) -> Any:
        """Query a workflow; gives None if it does not answer in time."""
        try:
            async with asyncio.timeout(QUERY_SECONDS):
                return await self.client.query(name, query, arguments)
        except (TimeoutError, RPCError, WorkflowQueryFailedError):
            return None

    async def repeat(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a call until it is answered; raises RPCError if the workflow does not exist."""
        attempts = 0
        while True:
            try:
                return await call()
            except RPCError as exc:
                if exc.status.name == "NOT_FOUND":
                    raise
                attempts += 1
                await asyncio.sleep(backoff_seconds(attempts))
