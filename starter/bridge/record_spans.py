"""Records told apart: what spans and log lines say of a record on its way to its message."""

from typing import Any

from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span
from starter.bridge.pending_record import PendingRecord, read_delivery
from starter.records.formats import Formats, find_correlation_id
from starter.records.record import DeadRecord
from starter.starting.delivery import Delivery


class RecordSpans:
    """Tells of the records of messages that are sampled. The rest cost a checksum each, and nothing while nobody listens."""

    def __init__(self, telemetry: Telemetry, group: str) -> None:
        self._telemetry = telemetry
        self._group = group

    def begin(self, held: PendingRecord, delivery: Delivery) -> Delivery:
        """Begin to tell of a record; its message then knows this span in place of the record's own, whose child it is."""
        if held.key is None or not self._telemetry.samples(held.key):
            return delivery
        if held.span is NO_SPAN:  # a delivery that has failed is made again: it is the same piece of work
            held.span = self._open(held, delivery)
        return delivery._replace(trace={**delivery.trace, "traceparent": held.span.traceparent})

    def _open(self, held: PendingRecord, delivery: Delivery) -> Span:
        attributes: Attributes = {"group": self._group, "kind": delivery.kind, **_describe(held, delivery)}
        return self._telemetry.begin_span(f"process {held.record.topic}", attributes, parent=delivery.trace)


def describe_held(held: PendingRecord, formats: Formats) -> dict[str, Any]:
    """Give the fields of a log line about a record, which is read once more for them: few lines are written."""
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
