"""Deliveries: what a record of a source asks for; asked twice, or late, it does nothing a second time."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE
from shared.messages.signals import TOMBSTONE, Revise, Stop


class Delivery(NamedTuple):
    """A message as a record brings it; `envelope` is None where the record says that the message is to be stopped.

    `source` ("topic/partition") and `offset` order what comes of one source: what is not newer than the last one
    applied to the message is ignored, also after the message's end, for as long as the server remembers it.
    """

    kind: str
    id: str
    source: str
    offset: int
    envelope: Envelope | None = None
    trace: Mapping[str, str] = NO_TRACE

    @property
    def sources(self) -> Mapping[str, int]:
        """What the message remembers of it."""
        return {self.source: self.offset}

    def to_signal(self) -> Revise | Stop:
        """Say what it asks of a message that is alive: without a moment of its own, to run now."""
        if self.envelope is None:
            return Stop(TOMBSTONE, self.source, self.offset)
        due_at = self.envelope.scheduled_at or datetime.now(UTC)
        return Revise(
            self.envelope.payload,
            self.source,
            self.offset,
            self.envelope.lane or "",
            due_at.isoformat(),
            priority=self.envelope.priority,
            trace=dict(self.trace),
        )
