"""Rows of an outbox's table: what each asks for, or why it asks for nothing that could be done."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from shared.errors import InvalidEnvelope
from shared.messages.envelope import EnvelopeRules, parse_envelope, parse_envelope_fast
from shared.messages.json_value import parse_json
from starter.starting.bulk import Request
from starter.starting.delivery import Delivery

WHITESPACE_SHARE = 4
"""How many times longer than allowed the text of a payload may be before it is not even read: it may have spaces."""

START = "start"
STOP = "stop"
ACTIONS = (START, "upsert", STOP)


class RowName(NamedTuple):
    """What is kept of a row while it is under way."""

    seq: int
    kind: str
    id: str


class OutboxRow(NamedTuple):
    """A row as it was taken; None where the application left a field out."""

    seq: int
    action: str
    kind: str
    id: str
    payload: str | None
    """JSON; None also if it is far too long."""
    payload_bytes: int | None
    scheduled_at: str | None
    expires_at: str | None
    tolerance_seconds: float | None
    lane: str | None
    priority: int | None
    tenant: str | None
    correlation_id: str | None

    @property
    def name(self) -> RowName:
        """What is kept of it."""
        return RowName(self.seq, self.kind, self.id)

    @property
    def options(self) -> dict[str, Any]:
        """The fields of an envelope that a row may leave out, without those that it does."""
        names = ("scheduled_at", "expires_at", "tolerance_seconds", "lane", "priority", "tenant", "correlation_id")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads rows of one table by the rules of this process; `source` is what messages remember of it."""

    rules: EnvelopeRules
    name_rules: EnvelopeRules
    source: str

    @classmethod
    def of(cls, rules: EnvelopeRules, source: str) -> Self:
        """Make the reader of a table."""
        return cls(rules, rules.for_names(), source)

    @property
    def bytes_max(self) -> int:
        """The longest payload that is read at all, in bytes of its text."""
        return self.rules.payload_max_bytes * WHITESPACE_SHARE

    def read(self, row: OutboxRow) -> Request:
        """Give the envelope of a start, and the delivery of what changes a message; raises InvalidEnvelope."""
        if row.action not in ACTIONS:
            raise InvalidEnvelope("action", f"is {row.action[:40]!r}; write {', '.join(ACTIONS)}")

        names = {"kind": row.kind, "id": row.id}
        if row.action == STOP:
            parse_envelope(names, self.name_rules)
            return Delivery(row.kind, row.id, self.source, row.seq)

        fields = {**names, "payload": self._parse(row), **row.options}
        envelope = parse_envelope_fast(fields, self.rules) or parse_envelope(fields, self.rules)
        if row.action == START:
            return envelope
        return Delivery(envelope.kind, envelope.id, self.source, row.seq, envelope)

    def _parse(self, row: OutboxRow) -> Any:
        if row.payload is None:
            if row.payload_bytes is None:
                return None
            limit = self.rules.payload_max_bytes
            remedy = "keep bulk data elsewhere and send its key"
            raise InvalidEnvelope(
                "payload", f"is {row.payload_bytes} bytes, the limit is {limit}; {remedy}", "TooLarge"
            )

        try:
            return parse_json(row.payload)
        except ValueError as exc:
            raise InvalidEnvelope("payload", f"{exc}; write plain JSON", "NotJson") from exc
