"""The yardstick: the smallest possible workflow that works, sleeps and comes back, and the smallest client for it.

It has no state worth the name, no signals, no attempts, no index: what a cycle costs here is what Temporal, its
Python SDK and this machine cost. Scenarios compare dormice with it on the same server in the same run.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client

WORKFLOW = "bare-loop"
ACTIVITY = "bare-process"


@workflow.defn(name=WORKFLOW)
class BareLoop:
    """Run the activity, sleep as long as it says, continue as new after a few cycles."""

    @workflow.run
    async def run(self, message_id: str, delay: float, cycles: int) -> None:
        """Loop."""
        for _ in range(cycles):
            wait = await workflow.execute_activity(
                ACTIVITY, args=[message_id, delay], result_type=float, start_to_close_timeout=timedelta(seconds=30)
            )
            await asyncio.sleep(wait)
        workflow.continue_as_new(args=[message_id, delay, cycles])


class BareActivity:
    """The work: as much simulated I/O as the handler it is compared with."""

    def __init__(self, note: Callable[[], None], io_seconds: float) -> None:
        self._note = note
        self._io_seconds = io_seconds

    @activity.defn(name=ACTIVITY)
    async def process(self, message_id: str, delay: float) -> float:  # noqa: ARG002 — a real one would need the id
        """Wait for the I/O, then say when to come back."""
        await asyncio.sleep(self._io_seconds)
        self._note()
        return delay


async def start_bare(
    client: Client, queue: str, ids: list[str], *, delay: float, cycles: int, in_flight: int = 64
) -> None:
    """Start one workflow per id, a bounded number at once."""
    gate = asyncio.Semaphore(in_flight)

    async def start(message_id: str) -> None:
        async with gate:
            await client.start_workflow(
                WORKFLOW,
                args=[message_id, delay, cycles],
                id=f"bare-{message_id}",
                task_queue=queue,
            )

    await asyncio.gather(*(start(message_id) for message_id in ids))
