"""A pending record: received by the bridge and not yet acknowledged, with what it asks for."""

from dataclasses import dataclass

from shared.messages.placement import workflow_id
from shared.telemetry.spans import NO_SPAN, Span
from starter.bridge.offsets import Partition
from starter.records.dead_letters import find_origin
from starter.records.formats import Formats, StartRequest
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
    """Workflow id of its message: records of one message run in the order received, whatever their Kafka keys."""
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


def decode_record(record: Record, partition: Partition, epoch: int, formats: Formats) -> PendingRecord:
    """Decode a record; one that can't become a message is given with `dead` set."""
    try:
        delivery = read_delivery(record, formats)
    except DeadRecord as exc:
        return PendingRecord(record, partition, epoch, dead=exc)
    return PendingRecord(record, partition, epoch, workflow_id(delivery.kind, delivery.id).encode(), delivery)


def read_delivery(record: Record, formats: Formats) -> Delivery:
    """Say what a record asks for; raises DeadRecord."""
    wanted = formats.decode(record)
    source, offset = find_origin(record)
    if isinstance(wanted, StartRequest):
        return Delivery(wanted.envelope.kind, wanted.envelope.id, source, offset, wanted.envelope, wanted.trace)
    return Delivery(wanted.kind, wanted.id, source, offset)
