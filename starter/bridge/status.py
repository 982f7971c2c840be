"""What a bridge process reports: where its partitions stand, as a document and as metrics, and whether it is ready."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from shared.telemetry import metrics
from shared.telemetry.metrics import MetricValue
from shared.telemetry.sdk import Telemetry
from starter.bridge.bridge import Bridge
from starter.bridge.delivery_loop import DEAD
from starter.bridge.offsets import PartitionOffsets
from starter.bridge.record_scheduler import QueueDepth
from starter.bridge.status_document import BridgeStatus, PartitionStatus
from starter.starting.receipts import StartOutcome
from worker.health import Readiness

OUTCOMES = (*(outcome.value for outcome in StartOutcome), DEAD)
"""What can become of records. Failed ones are tried again, rejected ones become dead letters."""

PUBLISH_SECONDS = 1.0


def read_status(bridge: Bridge) -> BridgeStatus:
    """Read a bridge's status; makes no call, so it is cheap and works while broker and server are away."""
    paused = bridge.paused
    find = bridge.assignment.find
    now = time.monotonic()
    epoch = time.time()

    return BridgeStatus(
        group=bridge.options.group,
        member=bridge.options.member,
        topics=bridge.options.topics,
        partitions=tuple(
            to_partition_status(
                offsets,
                bridge.scheduler.load_of(partition),
                end=bridge.find_end(partition),
                is_paused=partition in paused,
                now=now,
                epoch=epoch,
            )
            for partition in sorted(bridge.assignment.partitions)
            if (offsets := find(partition)) is not None
        ),
        received=bridge.received,
        outcomes={name: bridge.delivery_loop.outcomes.counts[name] for name in OUTCOMES},
        throttled=bridge.starter.caller.throttled,
        retried=bridge.starter.caller.retried,
        rebalances=bridge.rebalances,
        commit_failures=bridge.commit_failures,
    )


def to_partition_status(
    offsets: PartitionOffsets, depth: QueueDepth, *, end: int | None, is_paused: bool, now: float, epoch: float
) -> PartitionStatus:
    """Put together what is known about a partition; `now` is in monotonic seconds, `epoch` in seconds since 1970."""
    committed = offsets.last_committed
    oldest = offsets.oldest
    lag = None if committed is None or end is None else max(0, end - committed)
    time_lag = 0.0 if lag == 0 else None
    if oldest is not None:  # a producer's clock may be ahead of ours
        time_lag = max(0.0, epoch - oldest.timestamp / 1000) if oldest.timestamp >= 0 else None

    oldest_unacknowledged_seconds = 0.0 if oldest is None else max(0.0, now - oldest.received_at)
    return PartitionStatus(
        topic=offsets.partition.topic,
        number=offsets.partition.number,
        received=offsets.reached,
        committed=committed,
        end=end,
        lag=lag,
        time_lag_seconds=time_lag,
        oldest_unacknowledged_seconds=oldest_unacknowledged_seconds,
        in_flight=depth.in_flight,
        waiting=depth.waiting,
        is_paused=is_paused,
        blocked=depth.reason,
    )


async def publish_regularly(bridge: Bridge, telemetry: Telemetry) -> None:
    """Publish a bridge's metrics until cancelled; ends at once when nobody listens."""
    while telemetry.is_on:
        telemetry.publish(to_metric_values(read_status(bridge)))
        await asyncio.sleep(PUBLISH_SECONDS)


def to_metric_values(status: BridgeStatus) -> Iterator[MetricValue]:
    """Give every metric of a bridge that is known."""
    group = {"group": status.group}
    for partition in status.partitions:
        labels = {**group, "topic": partition.topic, "partition": str(partition.number)}
        for metric, value in (
            (metrics.LAG, partition.lag),
            (metrics.TIME_LAG, partition.time_lag_seconds),
            (metrics.OLDEST, partition.oldest_unacknowledged_seconds),
            (metrics.IN_FLIGHT, partition.in_flight),
            (metrics.WAITING, partition.waiting),
            (metrics.PAUSED, int(partition.is_paused)),
            (metrics.BLOCKED, int(bool(partition.blocked))),
        ):
            if value is not None:
                yield MetricValue(metric, value, labels)

    for outcome, count in status.outcomes.items():
        yield MetricValue(metrics.RECORDS, count, {**group, "outcome": outcome})

    yield MetricValue(metrics.THROTTLES, status.throttled, group)
    yield MetricValue(metrics.RETRIES, status.retried, group)
    yield MetricValue(metrics.REBALANCES, status.rebalances, group)
    yield MetricValue(metrics.COMMIT_FAILURES, status.commit_failures, group)


@dataclass(slots=True)
class BridgeReadiness(Readiness):
    """Ready means: a member of the group, also one without partitions, with a Temporal server that answers."""

    bridge: Bridge | None = None

    def find_gap(self) -> str:
        """Say what does not work yet; empty when everything does."""
        if self.bridge is None:
            return "starting"
        return "" if self.bridge.rebalances else "not yet a member of the group"

    def report_status(self) -> dict[str, Any] | None:
        """Give the bridge's status; None before there is a bridge."""
        return None if self.bridge is None else asdict(read_status(self.bridge))
