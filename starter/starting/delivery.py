"""Deliveries: what a source's record, or an upsert, asks for; a repeated or late one has no effect."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple, Self

from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE
from shared.messages.signals import Revise, Stop, name_request


class Delivery(NamedTuple):
    """A message as a record or a request brings it; `envelope` is None when the record asks to stop the message.

    `source` ("topic@id/partition") and `offset` order the records of one source: a record that is not newer than the
    last one applied to the message is ignored, also after the message's end, for as long as the server remembers it.
    """

    kind: str
    id: str
    source: str
    offset: int
    envelope: Envelope | None = None
    trace: Mapping[str, str] = NO_TRACE

    @classmethod
    def of_upsert(cls, envelope: Envelope, place: str = "") -> Self:
        """Make the delivery that upserts a message, once for its idempotency key, else for its place, else by itself.

        `place` names a row of a source that does not change, so the same place never has another body.
        """
        if key := envelope.idempotency_key:
            return cls(envelope.kind, envelope.id, name_request(key), envelope.fingerprint, envelope)
        return cls(envelope.kind, envelope.id, name_request(place or uuid.uuid4().hex), 0, envelope)

    @property
    def is_keyed(self) -> bool:
        """Whether its sender gave it an idempotency key, which may have been used for another body."""
        return self.envelope is not None and self.source == name_request(self.envelope.idempotency_key)

    @property
    def sources(self) -> Mapping[str, int]:
        """What the message remembers of this record."""
        return {self.source: self.offset}

    def to_signal(self) -> Revise | Stop:
        """Give the signal for a message that is alive; without `scheduled_at` the message runs now."""
        if (envelope := self.envelope) is None:
            return Stop.of_record(self.source, self.offset)
        return self.to_revision(envelope)

    def to_revision(self, envelope: Envelope) -> Revise:
        """Give the signal that makes a message that is alive what an envelope says."""
        return Revise.of_record(
            self.source,
            self.offset,
            envelope.payload,
            lane=envelope.lane or "",
            due_at=envelope.scheduled_at or datetime.now(UTC),
            priority=envelope.priority,
            expires_at=envelope.expires_at,
            trace=self.trace,
        )
