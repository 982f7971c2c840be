"""The floor of packs: the smallest workflow that keeps a thousand messages, on the embedded server, with no promise."""

import asyncio
import time
from collections.abc import Iterator

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.bare_pack import ACTIVITY, BareMessage, BarePack, start_bare_packs
from bench.peers.work import Handle, Order
from worker.process import tune_memory

SIZE, WAKES = 1000, 3
TOLERANCE_SECONDS = 1.0
CACHED = 100
SLOTS = 30


async def fill(order: Order) -> None:
    """Start all messages."""
    client = await Client.connect(order.addresses["temporal"])
    packs = _packs(order)
    await start_bare_packs(client, order.contestant, order.contestant, packs, coalesce=TOLERANCE_SECONDS, wakes=WAKES)


def _packs(order: Order) -> Iterator[list[BareMessage]]:
    names, due = order.message_ids(), order.due_at or time.time()
    for first in range(0, len(names), SIZE):
        yield [[due, name, order.payload(name)] for name in names[first : first + SIZE]]


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""

    @activity.defn(name=ACTIVITY)
    async def run(messages: list[BareMessage]) -> list[float]:
        return await asyncio.gather(*(handle(name, 0) for name, _ in messages))

    tune_memory()
    client = await Client.connect(order.addresses["temporal"])
    async with Worker(
        client,
        task_queue=order.contestant,
        workflows=[BarePack],
        activities=[run],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=CACHED,
        max_concurrent_workflow_tasks=SLOTS,
        max_concurrent_local_activities=SLOTS + 1,
        no_remote_activities=True,
    ):
        await asyncio.Event().wait()
