"""The validator: decides in each task, by the envelope's rules, which rows become messages and why others do not."""

import hashlib
import importlib
import itertools
import json
import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from shared.errors import InvalidEnvelope
from shared.messages.envelope import EnvelopeRules
from shared.messages.json_value import encode_json
from shared.messages.placement import unit_hash, workflow_id
from spark.prepare.fast_path import COLUMNS, FastPath
from spark.source.raw_rows import RawRows, RowReader, to_digest_bytes
from spark.tables import to_batches, to_schema

VERDICTS_DDL = (
    "row long, digest long, kind string, id string, lane string, given_at timestamp, scheduled_at timestamp, "
    "tolerance_seconds double, priority int, tenant string, payload string, correlation_id string, "
    "idempotency_key string, expires_at timestamp, field string, flaw string, reason string, original string"
)
"""A row with `field` is rejected; any other is a message. `given_at` is the due time in the row, before the spread."""

_NO_MESSAGE = (None,) * 12
_NO_FLAW = (None,) * 4


@dataclass(frozen=True, slots=True)
class Validator:
    """What a task does; it is sent to the executors, and gives the same result on each of them."""

    reader: RowReader
    rules: EnvelopeRules
    begin: datetime
    spread: timedelta

    def find_due(self, kind: str, message_id: str, given_at: datetime | None) -> datetime | None:
        """Give when a message runs first, None for at once; what is due by `begin` is spread from then on by a hash."""
        if not self.spread or (given_at is not None and given_at > self.begin):
            return given_at
        return self.begin + self.spread * unit_hash(workflow_id(kind, message_id))

    def validate(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Turn Arrow batches of raw rows into batches of verdicts, in the columns of VERDICTS_DDL.

        Some rows are taken at a time: the ordinary ones by the fast path, then the doubtful ones by the rules.
        """
        fast = FastPath.of(self.rules)
        for rows in self.reader.read(batches):
            checked = [None if each is None else fast.check(each, is_json=rows.is_json) for each in rows.fields]
            ordinary, is_sure = self._write_ordinary(fast, rows, checked)
            if ordinary.num_rows:
                yield ordinary
            doubtful = itertools.compress(zip(rows.numbers, rows.raws, strict=True), map(operator.not_, is_sure))
            verdicts = itertools.chain.from_iterable(itertools.starmap(self._judge, doubtful))
            yield from to_batches(verdicts, VERDICTS_DDL)

    def _write_ordinary(
        self, fast: FastPath, rows: RawRows, checked: Sequence[tuple[Any, ...] | None]
    ) -> tuple[Any, list[bool]]:
        """Give the verdicts of checked rows as one batch, and for each row whether it is among them."""
        arrow: Any = importlib.import_module("pyarrow")
        is_ordinary = [values is not None for values in checked]
        count = sum(is_ordinary)
        values = zip(*filter(None, checked), strict=True) if count else [()] * len(COLUMNS)
        columns: dict[str, Any] = dict(zip(COLUMNS, values, strict=True))
        numbers = list(itertools.compress(rows.numbers, is_ordinary))
        originals = list(itertools.compress(rows.originals, is_ordinary))
        given = columns["scheduled_at"]
        given_at = fast.read_moments(given)
        columns |= {
            "row": numbers,
            "digest": _digest(numbers, originals),
            "given_at": given_at,
            "scheduled_at": given_at,
        }

        if self.spread:
            named = zip(columns["kind"], columns["id"], given_at.to_pylist(), strict=True)
            columns["scheduled_at"] = list(itertools.starmap(self.find_due, named))

        schema = to_schema(VERDICTS_DDL)
        arrays = [_to_array(columns.get(field.name, (None,) * count), field.type) for field in schema]
        batch = arrow.RecordBatch.from_arrays(arrays, schema=schema)
        if given_at.null_count == given.count(None):
            return batch, is_ordinary

        is_read = [at is None or is_valid for at, is_valid in zip(given, given_at.is_valid().to_pylist(), strict=True)]
        each = iter(is_read)
        return batch.filter(arrow.array(is_read)), [flag and next(each) for flag in is_ordinary]

    def _judge(self, number: int, raw: Any) -> Iterator[tuple[Any, ...]]:
        """Give the verdict of a row by the rules, nothing for a blank line."""
        for row, parsed in self.reader.parse(number, raw, self.rules):
            place = (row.number, *_digest([row.number], [to_digest_bytes(row.original)]))
            if isinstance(parsed, InvalidEnvelope):
                flaw = (parsed.field, parsed.flaw, _clean(parsed.problem), write_original(row.original))
                yield (*place, *_NO_MESSAGE, *flaw)
                continue

            due_at = self.find_due(parsed.kind, parsed.id, parsed.scheduled_at)
            if parsed.expires_at is not None and due_at is not None and due_at >= parsed.expires_at:
                due_at = parsed.scheduled_at  # the spread leads no message beyond its expiry

            name = (parsed.kind, parsed.id, parsed.lane)
            numbers = (parsed.tolerance_seconds, parsed.priority)
            texts = (parsed.tenant, encode_json(parsed.payload).decode(), parsed.correlation_id, parsed.idempotency_key)
            yield (*place, *name, parsed.scheduled_at, due_at, *numbers, *texts, parsed.expires_at, *_NO_FLAW)


def _to_array(column: Any, kind: Any) -> Any:
    """Give a column as an array of Arrow; many columns hold the same value in all rows."""
    arrow: Any = importlib.import_module("pyarrow")
    if isinstance(column, arrow.Array):
        return column
    is_same = operator.is_ if kind == arrow.float64() else operator.eq  # 0.0 equals -0.0
    if column and all(map(is_same, column, itertools.repeat(column[0]))):
        return arrow.repeat(arrow.scalar(column[0], kind), len(column))
    return arrow.array(column, kind)


def _digest(numbers: Sequence[int], originals: Sequence[bytes]) -> list[int]:
    """Give a 64-bit digest of each row and its number (BLAKE2b); those of all rows are combined by exclusive or."""
    pairs = zip(numbers, originals, strict=True)
    digests = (hashlib.blake2b(b"%d\n%b" % pair, digest_size=8).digest() for pair in pairs)
    return list(struct.unpack(f">{len(numbers)}q", b"".join(digests)))


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
