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

    def begin(self, held: PendingRecord, delivery: Delivery) -> Delivery:
        """Open the record's span as a child of the record's own trace; the message gets this span as its parent."""
        if held.key is None or not self._telemetry.samples(held.key):
            return delivery
        if held.span is NO_SPAN:  # a retry belongs to the span of the first attempt
            held.span = self._open(held, delivery)
        return delivery._replace(trace={**delivery.trace, "traceparent": held.span.traceparent})

    def _open(self, held: PendingRecord, delivery: Delivery) -> Span:
        attributes: Attributes = {"group": self._group, "kind": delivery.kind, **_describe(held, delivery)}
        return self._telemetry.begin_span(f"process {held.record.topic}", attributes, parent=delivery.trace)


def describe_held(held: PendingRecord, formats: Formats) -> dict[str, Any]:
    """Give the log fields of a record, which is decoded again for them: such log lines are few."""
    try:
        delivery = read_delivery(held.record, formats)
    except DeadRecord:
        delivery = None
    return {**_describe(held, delivery), **held.span.ids}


def _describe(held: PendingRecord, delivery: Delivery | None) -> dict[str, str | int]:
    record = held.record
    if delivery is None or delivery.envelope is None:
        correlation_id = find_correlation_id(dict(record.headers))
    else:
        correlation_id = delivery.envelope.correlation_id
    return {
        "workflow_id": (held.key or b"").decode(),
        "correlation_id": correlation_id,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
