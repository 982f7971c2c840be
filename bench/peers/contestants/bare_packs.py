"""The floor of packs: the smallest workflow that keeps a thousand messages, on the embedded server, with no promise."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from temporalio.client import Client

from bench.bare_pack import BareBatch, BareMessage, BarePack, start_bare_packs
from bench.peers.work import Handle, Order
from bench.worker_process import build_bare_worker
from worker.process import tune_memory

SIZE = 1000
WAKES = 3
WARM_WAKES = 20
TOLERANCE_SECONDS = 1.0
CACHED = 100
SLOTS = 30
POLLERS = 5


async def fill(order: Order) -> None:
    """Start all messages."""
    client = await Client.connect(order.addresses["temporal"])
    packs = _packs(order)
    wakes = WARM_WAKES if order.cached else WAKES
    await start_bare_packs(client, order.contestant, order.contestant, packs, coalesce=TOLERANCE_SECONDS, wakes=wakes)


def _packs(order: Order) -> Iterator[list[BareMessage]]:
    names = order.message_ids()
    due = order.due_at or time.time()
    for first in range(0, len(names), SIZE):
        yield [[due, name, order.payload(name)] for name in names[first : first + SIZE]]


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""

    async def work(name: str, _: Any) -> float:
        return await handle(name, 0)

    tune_memory()
    client = await Client.connect(order.addresses["temporal"])
    batch = BareBatch(work).process
    cache = order.cached or CACHED
    async with build_bare_worker(client, order.contestant, BarePack, batch, cache=cache, slots=SLOTS, pollers=POLLERS):
        await asyncio.Event().wait()
