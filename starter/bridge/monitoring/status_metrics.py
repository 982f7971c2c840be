"""Readings: a bridge's status as metrics, published once a second while somebody listens."""

import asyncio
from collections.abc import Iterator

from shared.telemetry.metrics import (
    BLOCKED,
    COMMIT_FAILURES,
    IN_FLIGHT,
    LAG,
    OLDEST,
    PAUSED,
    REBALANCES,
    RECORDS,
    RETRIES,
    THROTTLES,
    TIME_LAG,
    WAITING,
    MetricValue,
)
from shared.telemetry.sdk import Telemetry
from starter.bridge.bridge import Bridge
from starter.bridge.monitoring.status import BridgeStatus, PartitionStatus, read_status

PUBLISH_SECONDS = 1.0


async def publish_regularly(bridge: Bridge, telemetry: Telemetry) -> None:
    """Publish a bridge's readings until cancelled; ends at once when nobody listens."""
    while telemetry.is_on:
        telemetry.publish(to_readings(read_status(bridge)))
        await asyncio.sleep(PUBLISH_SECONDS)


def to_readings(status: BridgeStatus) -> Iterator[MetricValue]:
    """Give every metric of a bridge that is known."""
    group = {"group": status.group}
    for partition in status.partitions:
        yield from _to_partition_readings(partition, group)
    for outcome, count in status.outcomes.items():
        yield MetricValue(RECORDS, count, {**group, "outcome": outcome})
    yield MetricValue(THROTTLES, status.throttled, group)
    yield MetricValue(RETRIES, status.retried, group)
    yield MetricValue(REBALANCES, status.rebalances, group)
    yield MetricValue(COMMIT_FAILURES, status.commit_failures, group)


def _to_partition_readings(status: PartitionStatus, group: dict[str, str]) -> Iterator[MetricValue]:
    labels = {**group, "topic": status.topic, "partition": str(status.number)}
    if status.lag is not None:
        yield MetricValue(LAG, status.lag, labels)
    if status.time_lag_seconds is not None:
        yield MetricValue(TIME_LAG, status.time_lag_seconds, labels)
    yield MetricValue(OLDEST, status.oldest_unacknowledged_seconds, labels)
    yield MetricValue(IN_FLIGHT, status.in_flight, labels)
    yield MetricValue(WAITING, status.waiting, labels)
    yield MetricValue(PAUSED, int(status.is_paused), labels)
    yield MetricValue(BLOCKED, int(bool(status.blocked)), labels)
