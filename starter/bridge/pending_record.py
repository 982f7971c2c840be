"""A pending record: received by the bridge and not yet acknowledged, with what traces and log lines say about it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shared.messages.placement import workflow_id
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span
from starter.bridge.offsets import Partition
from starter.records.formats import Formats, find_correlation_id
from starter.records.producers.schedules import is_own_tombstone
from starter.records.producers.spring_headers import read_headers
from starter.records.record import DeadRecord, Record
from starter.starting.delivery import Delivery


@dataclass(slots=True, eq=False)
class PendingRecord:
    """A record on its way to a message, or to the dead letters if `dead` says why."""

    record: Record
    partition: Partition
    epoch: int
    """Epoch of the assignment under which it was received."""
    key: bytes | None = None
    """Workflow id of its message: records of one message run in the order received, whatever their Kafka keys.

    None beside a reason in `dead`, and alone for a record that asks for nothing.
    """
    delivery: Delivery | None = None
    """What it asks for; None once handed on, so that 100,000 records under way are kept as bytes, not objects."""
    dead: DeadRecord | None = None
    attempts: int = 0
    """Failed attempts: in each, the server was away for all of a start's patience."""
    span: Span = NO_SPAN
    """Its trace span, if its message is sampled."""

    @property
    def offset(self) -> int:
        """The record's own."""
        return self.record.offset


def decode_records(
    records: Sequence[Record], partition: Partition, epoch: int, formats: Formats
) -> Iterator[PendingRecord]:
    """Decode records of a partition; one that can't become a message is given with `dead` set."""
    now = time.time()
    for record, decoded in zip(records, formats.decode_many(records), strict=True):
        if isinstance(decoded, DeadRecord):
            yield PendingRecord(record, partition, epoch, dead=decoded)
        elif decoded.envelope is None and is_own_tombstone(record, now):
            yield PendingRecord(record, partition, epoch)
        else:
            key = workflow_id(decoded.kind, decoded.id).encode()
            yield PendingRecord(record, partition, epoch, key, decoded)


class RecordSpans:
    """Traces the records of sampled messages; others cost one checksum, or nothing while telemetry is off."""

    def __init__(self, telemetry: Telemetry, group: str) -> None:
        self._telemetry = telemetry
        self._group = group

    def begin(self, pending: PendingRecord, delivery: Delivery) -> Delivery:
        """Open the record's span as a child of the record's own trace; the message gets this span as its parent."""
        if pending.key is None or not self._telemetry.samples(pending.key):
            return delivery
        if pending.span is NO_SPAN:  # a retry belongs to the span of the first attempt
            attributes: Attributes = {"group": self._group, "kind": delivery.kind, **_describe(pending, delivery)}
            name = f"process {pending.record.topic}"
            pending.span = self._telemetry.begin_span(name, attributes, parent=delivery.trace)
        return delivery._replace(trace={**delivery.trace, "traceparent": pending.span.traceparent})


def describe_held(pending: PendingRecord, formats: Formats) -> dict[str, Any]:
    """Give the log fields of a record, which is decoded again for them: such log lines are few."""
    try:
        delivery = formats.decode(pending.record)
    except DeadRecord:
        delivery = None
    return {**_describe(pending, delivery), **pending.span.ids}


def _describe(pending: PendingRecord, delivery: Delivery | None) -> dict[str, str | int]:
    record = pending.record
    envelope = delivery and delivery.envelope
    return {
        "workflow_id": (pending.key or b"").decode(),
        "correlation_id": envelope.correlation_id if envelope else find_correlation_id(read_headers(record.headers)),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }
