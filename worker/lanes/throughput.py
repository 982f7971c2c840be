"""Throughput: each worker process reports the most messages a second that it has done, for use in forecasts."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping

from temporalio.client import Client
from temporalio.service import RPCError

from shared.keepers.capacity import CAPACITY_WORKFLOW, MEASURED, capacity_workflow_id
from shared.lanes import task_queue
from shared.temporal.connect import signal_beginning

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 10.0
"""Batches of packs end in bursts: a shorter window would take a burst for what a worker can do."""

LEAST_PER_SECOND = 1.0
"""A lower rate says nothing about what a worker can do."""

WORTH_TELLING = 1.1
"""A new maximum is reported when it is at least the last reported one times this factor."""


async def tell_throughput(client: Client, prefix: str, lanes: Iterable[str], calls: Mapping[str, int]) -> None:
    """Watch how `calls` of handlers grow by lane, and report each new highest rate to the server; for ever."""
    reported = dict.fromkeys(lanes, LEAST_PER_SECOND / WORTH_TELLING)
    while True:
        before, began = dict(calls), asyncio.get_running_loop().time()
        await asyncio.sleep(WINDOW_SECONDS)
        lasted = asyncio.get_running_loop().time() - began
        for lane, highest in reported.items():
            per_second = (calls.get(lane, 0) - before.get(lane, 0)) / lasted
            if per_second < WORTH_TELLING * highest:
                continue
            with contextlib.suppress(RPCError):  # then the next window with such a rate is reported
                queue, name = task_queue(prefix, lane), capacity_workflow_id(task_queue(prefix, lane))
                await signal_beginning(client, CAPACITY_WORKFLOW, name, queue, MEASURED, client.identity, per_second)
                fields = {"action": "capacity_told", "queue": queue, "per_second": round(per_second, 2)}
                logger.info("capacity told", extra=fields)
                reported[lane] = per_second
