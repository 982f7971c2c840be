"""Metrics: everything that dormice measures about itself, declared once with unit and description."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is measured; `unit` is in UCUM notation, `labels` are the names of the labels of its readings."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, ascending


class MetricValue(NamedTuple):
    """The current value of a metric, for one set of labels."""

    metric: Metric
    value: float
    labels: Mapping[str, str]


def _gauge(name: str, unit: str, description: str) -> Metric:
    return Metric(name, "gauge", unit, description, ("group", "topic", "partition"))


def _counter(name: str, unit: str, description: str, *labels: str) -> Metric:
    return Metric(name, "counter", unit, description, ("group", *labels))


LAG = _gauge("dormice.bridge.lag", "{record}", "Records from the committed offset to the end of the partition.")
TIME_LAG = _gauge("dormice.bridge.time_lag", "s", "Age of the first record not acknowledged, by its timestamp.")
OLDEST = _gauge("dormice.bridge.oldest_unacknowledged", "s", "Time since that record was received.")
IN_FLIGHT = _gauge("dormice.bridge.in_flight", "{record}", "Records under way.")
WAITING = _gauge("dormice.bridge.waiting", "{record}", "Records received and not yet begun.")
PAUSED = _gauge("dormice.bridge.paused", "1", "1 while no records of the partition are fetched.")
BLOCKED = _gauge("dormice.bridge.blocked", "1", "1 while the partition waits for its dead-letter topic.")
PARTITION_METRICS = (LAG, TIME_LAG, OLDEST, IN_FLIGHT, WAITING, PAUSED, BLOCKED)

RECORDS = _counter("dormice.bridge.records", "{record}", "Records by what became of them.", "outcome")
THROTTLES = _counter("dormice.bridge.throttles", "{call}", "Calls for which the Temporal server had no room.")
RETRIES = _counter("dormice.bridge.retries", "{call}", "Calls made again for another reason.")
REBALANCES = _counter("dormice.bridge.rebalances", "{rebalance}", "Assignments of partitions.")
COMMIT_FAILURES = _counter("dormice.bridge.commit_failures", "{commit}", "Commits that failed and are made again.")

BRIDGE_METRICS = (*PARTITION_METRICS, RECORDS, THROTTLES, RETRIES, REBALANCES, COMMIT_FAILURES)  # once a second

OUTBOX_WAITING = Metric("dormice.outbox.waiting", "gauge", "{row}", "Rows that wait or are under way.", ("table",))
OUTBOX_OLDEST = Metric("dormice.outbox.oldest", "gauge", "s", "Age of the oldest of them.", ("table",))
OUTBOX_FAILED = Metric("dormice.outbox.failed", "gauge", "{row}", "Rows to be corrected by a person.", ("table",))
OUTBOX_ROWS = Metric("dormice.outbox.rows", "counter", "{row}", "Rows by what became of them.", ("table", "outcome"))
OUTBOX_METRICS = (OUTBOX_WAITING, OUTBOX_OLDEST, OUTBOX_FAILED, OUTBOX_ROWS)

BY_KIND = ("kind", "lane")
DURATION_BOUNDS = (0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0)
DISTANCE_BOUNDS = (0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)

CYCLES = Metric(
    "dormice.cycles", "counter", "{cycle}", "Calls of handlers by what they came to.", (*BY_KIND, "outcome")
)
HANDLER_DURATION = Metric(
    "dormice.handler.duration", "histogram", "s", "How long calls of handlers took.", BY_KIND, DURATION_BOUNDS
)
LATENESS = Metric(
    "dormice.lateness", "histogram", "s", "How long after they were due messages ran.", BY_KIND, DISTANCE_BOUNDS
)
EARLINESS = Metric(
    "dormice.earliness",
    "histogram",
    "s",
    "How long before they would have been due messages ran that idle capacity woke.",
    ("lane",),
    DISTANCE_BOUNDS,
)
PARKED = Metric("dormice.parked", "counter", "{message}", "Messages that failed for good.", BY_KIND)
GATED = Metric(
    "dormice.gated",
    "counter",
    "{message}",
    "Messages held by a closed gate or a limit, their handlers not called.",
    BY_KIND,
)
CACHED_RUNS = Metric("dormice.cache.runs", "gauge", "{run}", "Messages and packs that a worker process has in memory.")
CACHED_BYTES = Metric("dormice.cache.size", "gauge", "By", "About how much memory they take.")
AT_WORK = Metric("dormice.handlers", "gauge", "{call}", "Handlers at work.", ("lane",))

OLDEST_OVERDUE = Metric(
    "dormice.overdue.oldest",
    "gauge",
    "s",
    "How long the most overdue message of a lane has waited; told by one worker process of the lane.",
    ("lane",),
)

SERVER_CHECKS = Metric(
    "dormice.server.checks",
    "counter",
    "{check}",
    "Times that the Temporal server was asked for its health, by whether it answered; bridges tell it too.",
    ("outcome",),
)

WORKER_METRICS = (
    CYCLES,
    HANDLER_DURATION,
    LATENESS,
    EARLINESS,
    PARKED,
    GATED,
    AT_WORK,
    CACHED_RUNS,
    CACHED_BYTES,
    SERVER_CHECKS,
)
"""What a worker records as it happens."""

PUBLISHED_METRICS = (*BRIDGE_METRICS, *OUTBOX_METRICS, OLDEST_OVERDUE)  # as a whole: a series that is left out ends
