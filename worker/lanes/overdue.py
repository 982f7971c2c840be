"""The gauge of overdue messages: once a minute one worker process of each lane measures and publishes it."""

import asyncio
import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.idle.capacity import Capacity
from activities.idle.overdue import OverdueIndex
from shared.errors import Misconfigured, RetryLater
from shared.lanes import task_queue
from shared.settings import Settings
from shared.telemetry.metrics import OLDEST_OVERDUE, MetricValue
from shared.telemetry.sdk import Telemetry
from shared.temporal.connect import translate_rpc_error

MEASURE_EVERY = timedelta(minutes=1)
FIRST_AFTER = timedelta(seconds=10)
"""By then, processes that were started together know of each other."""


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
