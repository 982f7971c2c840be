"""The yardstick of packs: the smallest possible workflow that keeps many messages, and the smallest client for it.

Its state is a list, its wake one activity for all that is due. It knows no attempts, signals, queries, limits or
index: what a cycle costs here is what Temporal, its Python SDK, JSON and this machine cost.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client

WORKFLOW = "bare-pack"
ACTIVITY = "bare-batch"
IN_FLIGHT = 64

BareMessage = list[Any]
"""[due (seconds since the epoch), id, payload]"""


@workflow.defn(name=WORKFLOW)
class BarePack:
    """Sleep until the first message and a while more, run all that is due, continue as new after a few wakes."""

    @workflow.run
    async def run(self, messages: list[BareMessage], coalesce: float, wakes: int) -> None:
        """Loop."""
        for _ in range(wakes):
            await asyncio.sleep(min(m[0] for m in messages) + coalesce - workflow.time())
            now = workflow.time()
            due = [m for m in messages if m[0] <= now]
            waits = await workflow.execute_activity(
                ACTIVITY, [m[1:] for m in due], result_type=list[float], start_to_close_timeout=timedelta(seconds=50)
            )
            now = workflow.time()
            for message, wait in zip(due, waits, strict=True):
                message[0] = round(now + wait, 3)

        workflow.continue_as_new(args=[messages, coalesce, wakes])


class BareBatch:
    """The work: `handle` does as much I/O for a message, by id and payload, as the handler it is compared with.

    It gives the seconds until the message is to come back.
    """

    def __init__(self, handle: Callable[[str, Any], Awaitable[float]]) -> None:
        self._handle = handle

    @activity.defn(name=ACTIVITY)
    async def process(self, messages: list[list[Any]]) -> list[float]:
        """Wait for the I/O of all at once, then say when each is to come back."""
        return await asyncio.gather(*(self._handle(name, payload) for name, payload in messages))


def spread_factor(share: float) -> float:
    """Give a factor by chance that differs from 1 by up to `share`."""
    return 1 + share * random.uniform(-1, 1)


async def start_bare_packs(
    client: Client, queue: str, name: str, packs: Iterable[list[BareMessage]], *, coalesce: float, wakes: int
) -> None:
    """Start one workflow per pack with its messages as input, a bounded number at once."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def start(number: int, messages: list[BareMessage]) -> None:
        async with gate:
            await client.start_workflow(
                WORKFLOW,
                args=[messages, coalesce, wakes],
                id=f"{name}-{number}",
                task_queue=queue,
            )

    await asyncio.gather(*(start(number, messages) for number, messages in enumerate(packs)))
