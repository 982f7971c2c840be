"""Part `herd`: one, four and sixteen pollers that have nothing to do, and then all want the same messages at once."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import psutil

from bench.harness import sum_cpu
from bench.peers.contestants import Contestant
from bench.peers.processes import fill, serving
from bench.peers.work import Order
from bench.pollers.calls import Calls
from bench.pollers.stores import Store, run_stage

SETTLE_SECONDS = 3.0
IDLE_SECONDS = 8.0
COUNTED_SECONDS = 2.0
"""PostgreSQL counts a transaction as much as a second late."""

STARTED_IN = 5.0
STORED_A_SECOND = 4000.0
"""The messages are sent within so many times what an empty fill took, and so many a second."""

LOOK_SECONDS = 0.1
HOUR = 3600.0


async def measure_herd(contestant: Contestant, pollers: int, messages: int, seconds: float) -> dict[str, Any]:
    """Look at idle pollers, then store messages that are due at one moment, and wait until all have run.

    Waits `seconds` at most. Raises RuntimeError when the messages were not stored in time.
    """
    async with run_stage(contestant, messages, (HOUR, 2 * HOUR)) as (store, calls, order):
        began = time.monotonic()
        await fill(replace(order, count=0))
        ahead = STARTED_IN * (time.monotonic() - began) + messages / STORED_A_SECOND
        async with _running_pollers(order, pollers) as processes:
            await asyncio.sleep(SETTLE_SECONDS)
            idle = await _watch_idle(store, processes)
            herd = await _watch_herd(store, calls, replace(order, due_at=time.time() + ahead), seconds)
    herd["transactions each"] -= COUNTED_SECONDS * idle["idle: polls/s"] / max(1, herd["done"])
    return {"who": contestant.title, "pollers": pollers} | idle | herd


@contextlib.asynccontextmanager
async def _running_pollers(order: Order, count: int) -> AsyncGenerator[list[psutil.Process]]:
    async with contextlib.AsyncExitStack() as stack:
        processes = [await stack.enter_async_context(serving(order)) for _ in range(count)]
        yield [psutil.Process(process.pid) for process in processes]


async def _watch_idle(store: Store, processes: list[psutil.Process]) -> dict[str, float]:
    before = await store.read()
    cpu = sum(map(sum_cpu, processes))
    began = time.monotonic()
    await asyncio.sleep(IDLE_SECONDS)
    used = (await store.read()).since(before)
    cpu = sum(map(sum_cpu, processes)) - cpu
    seconds = time.monotonic() - began

    return {
        "idle: polls/s": used.transactions / seconds,
        "store's cores": used.cpu_seconds / seconds,
        "pollers' cores": cpu / seconds,
    }


async def _watch_herd(store: Store, calls: Calls, order: Order, seconds: float) -> dict[str, Any]:
    await fill(order, "send")
    await asyncio.sleep(order.due_at - 0.5 - time.time())
    if calls.read_on():
        raise RuntimeError(f"{order.contestant} called before the moment at which all are due")

    before = await store.read()
    while calls.read_on() < order.count and time.time() < order.due_at + seconds:  # noqa: ASYNC110 — others make them
        await asyncio.sleep(LOOK_SECONDS)

    done = len(calls.first)
    took = max(calls.first.values(), default=time.time()) - order.due_at
    await asyncio.sleep(COUNTED_SECONDS)
    used = (await store.read()).since(before)
    print(f"{order.contestant}: {done:,} in {took:.1f} s, {used}", file=sys.stderr)

    return {
        "due": order.count,
        "done": done,
        "in s": took,
        "transactions each": used.transactions / max(1, done),
        "rows polled each": used.polled_rows / max(1, done),
        "store's cpu ms each": 1000 * used.cpu_seconds / max(1, done),
        "calls twice": calls.count - done,
    }
