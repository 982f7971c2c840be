"""A held record: one that the bridge has received and not yet acknowledged, with what it asks for."""

from dataclasses import dataclass

from shared.placement import workflow_id
from starter.bridge.dead_letters import find_origin
from starter.bridge.formats import Formats, Start
from starter.bridge.offsets import Partition
from starter.bridge.record import DeadRecord, Record
from starter.delivery import Delivery


@dataclass(slots=True, eq=False)
class Held:
    """A record on its way; exactly one of `delivery` and `dead` says what is to become of it."""

    record: Record
    partition: Partition
    epoch: int
    """Of the assignment under which it was received."""
    delivery: Delivery | None
    dead: DeadRecord | None
    attempts: int = 0
    """Failed ones: the server had stayed away for all of a start's patience."""

    @property
    def key(self) -> bytes | None:
        """Name the message: what of one message is received in some order is done in that order, whatever its keys."""
        return None if self.delivery is None else workflow_id(self.delivery.kind, self.delivery.id).encode()

    @property
    def offset(self) -> int:
        """The record's own."""
        return self.record.offset


def hold(record: Record, partition: Partition, epoch: int, formats: Formats) -> Held:
    """Read a record; one that can't become a message is held all the same, as a dead one."""
    try:
        wanted = formats.decode(record)
    except DeadRecord as exc:
        return Held(record, partition, epoch, None, exc)
    source, offset = find_origin(record)
    if isinstance(wanted, Start):
        delivery = Delivery(wanted.envelope.kind, wanted.envelope.id, source, offset, wanted.envelope, wanted.trace)
    else:
        delivery = Delivery(wanted.kind, wanted.id, source, offset)
    return Held(record, partition, epoch, delivery, None)
