"""Record spans: what traces and log lines say about a record on its way to its message."""

from typing import Any

from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span
from starter.bridge.pending_record import PendingRecord, read_delivery
from starter.records.formats import Formats, find_correlation_id
from starter.records.record import DeadRecord
from starter.starting.delivery import Delivery


class RecordSpans:
    """Traces the records of sampled messages.

    Any other record costs one checksum, or nothing while telemetry is off.
    """

    def __init__(self, telemetry: Telemetry, group: str) -> None:
        self._telemetry = telemetry
        self._group = group

    def begin(self, pending: PendingRecord, delivery: Delivery) -> Delivery:
        """Open the record's span as a child of the record's own trace; the message gets this span as its parent."""
        if pending.key is None or not self._telemetry.samples(pending.key):
            return delivery
        if pending.span is NO_SPAN:  # a retry belongs to the span of the first attempt
            pending.span = self._open(pending, delivery)
        return delivery._replace(trace={**delivery.trace, "traceparent": pending.span.traceparent})

    def _open(self, pending: PendingRecord, delivery: Delivery) -> Span:
        attributes: Attributes = {"group": self._group, "kind": delivery.kind, **_describe(pending, delivery)}
        return self._telemetry.begin_span(f"process {pending.record.topic}", attributes, parent=delivery.trace)


def describe_held(pending: PendingRecord, formats: Formats) -> dict[str, Any]:
    """Give the log fields of a record, which is decoded again for them: such log lines are few."""
    try:
        delivery = read_delivery(pending.record, formats)
    except DeadRecord:
        delivery = None
    return {**_describe(pending, delivery), **pending.span.ids}


def _describe(pending: PendingRecord, delivery: Delivery | None) -> dict[str, str | int]:
    record = pending.record
    if delivery is None or delivery.envelope is None:
        correlation_id = find_correlation_id(dict(record.headers))
    else:
        correlation_id = delivery.envelope.correlation_id
    return {
        "workflow_id": (pending.key or b"").decode(),
        "correlation_id": correlation_id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
