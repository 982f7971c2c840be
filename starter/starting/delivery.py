"""Deliveries: what a source's record asks for; a repeated or late record has no effect."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE
from shared.messages.signals import TOMBSTONE, Revise, Stop


class Delivery(NamedTuple):
    """A message as a record brings it; `envelope` is None when the record asks to stop the message.

    `source` ("topic/partition") and `offset` order the records of one source: a record that is not newer than the last
    one applied to the message is ignored, also after the message's end, for as long as the server remembers it.
    """

    kind: str
    id: str
    source: str
    offset: int
    envelope: Envelope | None = None
    trace: Mapping[str, str] = NO_TRACE

    @property
    def sources(self) -> Mapping[str, int]:
        """What the message remembers of this record."""
        return {self.source: self.offset}

    def to_signal(self) -> Revise | Stop:
        """Give the signal for a message that is alive; without `scheduled_at` the message runs now."""
        if (envelope := self.envelope) is None:
            return Stop(TOMBSTONE, self.source, self.offset)
        due_at = (envelope.scheduled_at or datetime.now(UTC)).isoformat()
        given = (envelope.payload, self.source, self.offset, envelope.lane or "", due_at)
        return Revise(*given, priority=envelope.priority, trace=dict(self.trace))
