"""Idle capacity: how fast the short lane runs ahead of time, against its rate with a backlog, and what that costs then.

With a backlog more is always due than the machine can do; with nothing due, thousands of messages may run ahead.
"""

import asyncio
import itertools
import time
from dataclasses import replace
from statistics import median
from typing import Any

import httpx
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes

from bench.harness import alternate, fill, fresh_server, new_prefix, report, working
from bench.worker_process import KIND, Measured, Order
from shared.lanes import task_queue
from shared.messages.message import MessageState
from shared.messages.placement import MESSAGE_WORKFLOW
from shared.settings import Settings
from shared.temporal.search_attributes import attributes_at_start
from starter.local.embedded import EmbeddedServer
from starter.steering.keepers import IdleControl

PAIRS = 4
SECONDS = 5.0
WINDOWS = 6
RAMP = 3
"""The rate of pulling grows with each heartbeat: the first windows in which anything runs are left out."""

WINDOWS_MAX = 60
"""Messages that have just been started keep the lane busy until each has gone to sleep."""

BACKLOG = 3000
BACKLOG_DELAY = 15.0
AHEAD = 4000
HOUR = 3600.0
OFF = "backlog, idle off"
ON = "backlog, idle on"
AHEAD_OF_TIME = "nothing due, idle on"

INDEX_AFTER = 5.0
"""So that each cycle writes its due time into the index, as one that comes back in hours does anyway."""


async def main(_: list[str]) -> None:
    """Compare in rounds, each in the opposite order of the one before."""
    seen: dict[str, list[Measured]] = {OFF: [], ON: [], AHEAD_OF_TIME: []}
    calls: dict[str, list[float]] = {what: [] for what in seen}

    async with fresh_server() as server:
        client = await server.connect()
        busy = new_prefix()
        await fill(client, "dormice", busy, BACKLOG, BACKLOG_DELAY)

        for number in range(PAIRS):
            for what in alternate(seen, number):
                prefix = busy
                if what == AHEAD_OF_TIME:
                    prefix = new_prefix()
                    await _sow(client, prefix)
                before = await _count_visibility_calls(server)
                began = time.monotonic()
                seen[what].append(await _measure(server, prefix, is_on=what != OFF))
                calls[what].append((await _count_visibility_calls(server) - before) / (time.monotonic() - began))

    rows: list[dict[str, Any]] = [
        {
            "case": what,
            "cycles/s": median(m.rate for m in runs),
            "ratio": median(m.rate / off.rate for m, off in zip(runs, seen[OFF], strict=True)),
            "visibility calls/s": max(calls[what]),
        }
        for what, runs in seen.items()
    ]
    report("idle", rows, note=f"{PAIRS} rounds of {SECONDS * (WINDOWS - RAMP):.0f} s; one worker process")


async def _measure(server: EmbeddedServer, prefix: str, *, is_on: bool) -> Measured:
    """Give what a worker does in the windows after the ramp."""
    await IdleControl(await server.connect(), Settings(task_queue_prefix=prefix)).switch("short", is_on=is_on)
    order = Order(what="dormice", prefix=prefix, seconds=SECONDS, windows=WINDOWS_MAX, index_after=INDEX_AFTER)
    async with asyncio.timeout(SECONDS * WINDOWS_MAX), working(server, order) as windows:
        while len(busy := [m for m in windows if m.cycles]) < WINDOWS:  # noqa: ASYNC110 — another process grows it
            await asyncio.sleep(0.2)
    counted = busy[RAMP:WINDOWS]
    return replace(counted[-1], cycles=sum(m.cycles for m in counted), seconds=sum(m.seconds for m in counted))


async def _sow(client: Client, prefix: str) -> None:
    """Let messages sleep that are due in hours and may run at once, which a sender can't ask for."""
    now = time.time()
    numbers = iter(range(AHEAD))

    async def start(number: int) -> None:
        state = MessageState(
            KIND, f"{prefix}-{number}", "short", now + 10 * HOUR + number, now - 1.0, payload={"delay": 20 * HOUR}
        )
        await client.start_workflow(
            MESSAGE_WORKFLOW,
            state.dump(),
            id=state.workflow_id,
            task_queue=task_queue(prefix, "short"),
            search_attributes=TypedSearchAttributes(attributes_at_start(state, now, 60.0)),
        )

    while group := list(itertools.islice(numbers, 64)):
        await asyncio.gather(*map(start, group))


async def _count_visibility_calls(server: EmbeddedServer) -> float:
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(server.metrics_url)).text
    asked = ('operation="CountWorkflowExecutions"', 'operation="ListWorkflowExecutions"')
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("service_requests{") and 'service_name="frontend"' in line and any(a in line for a in asked)
    )
