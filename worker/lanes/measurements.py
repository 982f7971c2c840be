"""What worker processes measure beside their work: how many messages a second they do, and how overdue a lane is."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.idle.capacity import Capacity
from activities.idle.overdue import OverdueIndex
from shared.errors import Misconfigured, RetryLater
from shared.keepers.capacity import CAPACITY_WORKFLOW, MEASURED, capacity_workflow_id
from shared.lanes import task_queue
from shared.settings import Settings
from shared.telemetry.metrics import OLDEST_OVERDUE, MetricValue
from shared.telemetry.sdk import Telemetry
from shared.temporal.connect import translate_rpc_error
from shared.temporal.workflow_calls import signal_beginning

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 10.0  # batches of packs end in bursts: a shorter window would take a burst for what a worker can do
PER_SECOND_MIN = 1.0  # a lower rate says nothing about what a worker can do
WORTH_REPORTING = 1.1  # a new maximum is reported when it is at least the last reported one times this factor
MEASURE_EVERY = timedelta(minutes=1)
FIRST_AFTER = timedelta(seconds=10)  # by then, processes that were started together know of each other


async def report_throughput(client: Client, prefix: str, lanes: Iterable[str], calls: Mapping[str, int]) -> None:
    """Watch how `calls` of handlers grow by lane, and report each new highest rate to the server; for ever."""
    reported = dict.fromkeys(lanes, PER_SECOND_MIN / WORTH_REPORTING)
    while True:
        before = dict(calls)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(WINDOW_SECONDS)
        lasted = asyncio.get_running_loop().time() - began

        for lane, highest in reported.items():
            per_second = (calls.get(lane, 0) - before.get(lane, 0)) / lasted
            if per_second < WORTH_REPORTING * highest:
                continue
            with contextlib.suppress(RPCError):  # then the next window with such a rate is reported
                queue = task_queue(prefix, lane)
                name = capacity_workflow_id(task_queue(prefix, lane))
                await signal_beginning(client, CAPACITY_WORKFLOW, name, queue, MEASURED, client.identity, per_second)
                fields = {"action": "capacity_told", "queue": queue, "per_second": round(per_second, 2)}
                logger.info("capacity told", extra=fields)
                reported[lane] = per_second


async def measure_overdue(
    client: Client, settings: Settings, lanes: Iterable[str], telemetry: Telemetry, every: timedelta = MEASURE_EVERY
) -> None:
    """Publish how long each lane's most overdue message has waited, where no other process does; for ever."""
    queues = {lane: task_queue(settings.task_queue_prefix, lane) for lane in lanes}
    indexes = {lane: OverdueIndex(client, queue, settings.index_after) for lane, queue in queues.items()}
    wait = min(every, FIRST_AFTER)

    while telemetry.is_on:
        await asyncio.sleep(wait.total_seconds())
        readings: list[MetricValue] = []
        for lane, index in indexes.items():
            with contextlib.suppress(RetryLater, Misconfigured):
                if await _is_first(client, queues[lane]):
                    now = datetime.now(UTC)
                    ages = [(now - oldest.due_at).total_seconds() for oldest in await index.find_oldest(1, now)]
                    readings.append(MetricValue(OLDEST_OVERDUE, max(ages, default=0.0), {"lane": lane}))
        telemetry.publish(readings)
        wait = every


async def _is_first(client: Client, queue: str) -> bool:
    """Return whether this process measures: it has the first identity of all that serve the queue."""
    try:
        return client.identity == min(await Capacity(client, queue).find_identities(), default=client.identity)
    except RPCError as exc:
        if exc.status is RPCStatusCode.UNIMPLEMENTED:  # a server without heartbeats of workers does not know the others
            return True
        raise translate_rpc_error(exc) from exc
