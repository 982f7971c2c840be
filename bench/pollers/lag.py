"""Part `lag`: what is fresh and short behind a backlog, as after an outage in which everything became due."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from statistics import quantiles
from typing import Any

from bench.peers.contestants import Contestant
from bench.peers.processes import fill, running, serving
from bench.peers.work import Order
from bench.pollers.calls import Calls
from bench.pollers.stores import run_stage

FRESH_A_SECOND = 20
GRACE_SECONDS = 5.0
"""So long after the backlog the fresh messages that became due before its end may still run."""

LOOK_SECONDS = 0.5
HOUR = 3600.0


async def measure_lag(contestant: Contestant, messages: int, seconds: float) -> dict[str, Any]:
    """Fill, start a worker, and send fresh messages until the backlog is done, or for so many seconds."""
    async with run_stage(contestant, messages, (HOUR, 2 * HOUR)) as (_, calls, order):
        await fill(order)
        async with _serving_fresh(contestant, order) as fresh:
            ended = await _wait_for_backlog(fresh, calls, fresh.fresh_from + seconds)
    return {"who": contestant.title, "due at once": messages} | _describe(fresh, calls, ended)


@contextlib.asynccontextmanager
async def _serving_fresh(contestant: Contestant, order: Order) -> AsyncGenerator[Order]:
    """Run a worker and whoever sends fresh messages for the length of a `with` block; gives the order of these."""
    fresh = replace(order, fresh_a_second=FRESH_A_SECOND)
    served = fresh if contestant.sends_inside else order
    async with serving(served), contextlib.AsyncExitStack() as stack:
        fresh = replace(fresh, fresh_from=time.time())
        if not contestant.sends_inside:
            await stack.enter_async_context(running("send", fresh))
        yield fresh


async def _wait_for_backlog(fresh: Order, calls: Calls, until: float) -> float:
    """Wait until the backlog is done, and what became due before; gives when the backlog was done, or the end."""
    done_at = 0.0
    while (now := time.time()) < until and not (done_at and now > done_at + GRACE_SECONDS):
        await asyncio.sleep(LOOK_SECONDS)
        if calls.read_on() >= fresh.count and not done_at:
            backlog = [at for name, at in calls.first.items() if not name.startswith("fresh-")]
            done_at = max(backlog) if len(backlog) == fresh.count else 0.0
    return done_at or until


def _describe(fresh: Order, calls: Calls, ended: float) -> dict[str, Any]:
    """Count what a message that has not run had waited until the end as its lateness: it is at least that."""
    backlog = sum(not name.startswith("fresh-") for name in calls.first)
    seconds = ended - fresh.fresh_from
    messages = fresh.fresh_messages
    numbers = range(max(0, int((seconds - 1) * messages.a_second)))
    due = {f"fresh-{number:06}": messages.find_due(number) for number in numbers}
    late = [calls.first.get(name, ended) - at for name, at in due.items()]
    cuts = quantiles(late, n=100) if len(late) > 1 else [0.0] * 99

    return {
        "done": backlog,
        "in s": seconds,
        "done/s": backlog / seconds,
        "fresh": len(due),
        "not run": sum(name not in calls.first for name in due),
        "late p50 s": cuts[49],
        "late p99 s": cuts[98],
        "calls twice": calls.count - len(calls.first),
    }
