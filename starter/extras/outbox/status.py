"""What an outbox process reports: what its table holds and what it has done, as a document and as metrics."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shared.telemetry import metrics
from shared.telemetry.metrics import MetricValue
from shared.telemetry.sdk import Telemetry
from starter.extras.outbox.outbox import Outbox
from starter.starting.receipts import StartOutcome
from worker.health import Readiness

PUBLISH_SECONDS = 1.0


async def publish_regularly(outbox: Outbox, telemetry: Telemetry) -> None:
    """Publish an outbox's metrics until cancelled; ends at once when nobody listens."""
    while telemetry.is_on:
        telemetry.publish(to_metric_values(outbox))
        await asyncio.sleep(PUBLISH_SECONDS)


def to_metric_values(outbox: Outbox) -> Iterator[MetricValue]:
    """Give every metric of an outbox; those of its table once they are known."""
    table = {"table": str(outbox.connection.table)}
    if (backlog := outbox.backlog) is not None:
        yield MetricValue(metrics.OUTBOX_WAITING, backlog.waiting, table)
        yield MetricValue(metrics.OUTBOX_OLDEST, backlog.oldest_seconds, table)
        yield MetricValue(metrics.OUTBOX_FAILED, backlog.failed, table)
    for outcome in StartOutcome:
        yield MetricValue(metrics.OUTBOX_ROWS, outbox.counts[outcome], {**table, "outcome": outcome.value})


@dataclass(slots=True)
class OutboxReadiness(Readiness):
    """Ready means: the table can be read, and the Temporal server answers."""

    outbox: Outbox | None = None

    def find_gap(self) -> str:
        """Say what does not work now; empty when everything does."""
        return "starting" if self.outbox is None else self.outbox.gap

    def report_status(self) -> dict[str, Any] | None:
        """Give the outbox's status, its counts since it started; None before the table has been counted."""
        if self.outbox is None or self.outbox.backlog is None:
            return None
        outcomes = {outcome.value: self.outbox.counts[outcome] for outcome in StartOutcome}
        return {
            "table": str(self.outbox.connection.table),
            **self.outbox.backlog._asdict(),
            "outcomes": outcomes,
            "gap": self.outbox.gap,
        }
