"""The validator: decides in each task, by the envelope's rules, which rows become messages and why others do not."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules
from shared.messages.json_value import encode_json
from shared.messages.placement import unit_hash, workflow_id
from spark.source.raw_rows import RowReader
from spark.tables import to_batches
from starter.files.rows import Row

VERDICTS_DDL = (
    "row long, digest long, kind string, id string, lane string, told_at timestamp, scheduled_at timestamp, "
    "tolerance_seconds double, priority int, tenant string, payload string, correlation_id string, "
    "idempotency_key string, field string, flaw string, reason string, original string"
)
"""A row with `field` is rejected; any other is a message. `told_at` is the due time in the row, before the spread."""

_NO_MESSAGE = (None,) * 11
_NO_FLAW = (None,) * 4


@dataclass(frozen=True, slots=True)
class Validator:
    """What a task does; it is sent to the executors, and gives the same result on each of them."""

    reader: RowReader
    rules: EnvelopeRules
    begin: datetime
    spread: timedelta

    def find_due(self, envelope: Envelope) -> datetime | None:
        """Give when a message runs first, None for at once; what is due by `begin` is spread from then on by a hash."""
        due_at = envelope.scheduled_at
        if not self.spread or (due_at is not None and due_at > self.begin):
            return due_at
        return self.begin + self.spread * unit_hash(workflow_id(envelope.kind, envelope.id))

    def validate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Turn Arrow batches of raw rows into batches of verdicts, in the columns of VERDICTS_DDL."""
        verdicts = (self._write(row, parsed) for row, parsed in self.reader.read(batches, self.rules))
        return to_batches(verdicts, VERDICTS_DDL)

    def _write(self, row: Row, parsed: Envelope | InvalidEnvelope) -> tuple[Any, ...]:
        place = (row.number, _digest(row))
        if isinstance(parsed, InvalidEnvelope):
            flaw = (parsed.field, parsed.flaw, _clean(parsed.problem), write_original(row.original))
            return (*place, *_NO_MESSAGE, *flaw)
        times = (parsed.scheduled_at, self.find_due(parsed), parsed.tolerance_seconds)
        texts = (parsed.tenant, encode_json(parsed.payload).decode(), parsed.correlation_id, parsed.idempotency_key)
        return (*place, parsed.kind, parsed.id, parsed.lane, *times, parsed.priority, *texts, *_NO_FLAW)


def _digest(row: Row) -> int:
    """Give a 64-bit digest of a row and its number (BLAKE2b); the digests of all rows are combined by exclusive or."""
    text = row.original if isinstance(row.original, str) else repr(row.original)
    raw = f"{row.number}\n{text}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big", signed=True)


def write_original(value: Any) -> str:
    """Give a row's original as JSON, whatever it contains."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # a table may hold NaN, which JSON can't write
        text = json.dumps(str(value), ensure_ascii=False)
    return _clean(text)


def _clean(text: str) -> str:
    """Make text valid UTF-8: a lone surrogate becomes its JSON escape."""
    return text.encode(errors="backslashreplace").decode()
