"""Batches: checks the columns of a frame by its schema, and reads the messages in its Arrow batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from starter.files.columns import Columns

ROW = "row"
"""A manifest's own column: the row that a message comes from; not a part of the message."""

_SOURCE = "the frame"
_TEXTS = ("kind", "id", "lane", "tenant", "correlation_id", "idempotency_key")
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    **dict.fromkeys(_TEXTS, ((StringType,), "string")),
    "scheduled_at": ((TimestampType, StringType), "timestamp"),
    "tolerance_seconds": ((IntegralType, FractionalType, DecimalType), "double"),
    "priority": ((IntegralType,), "int"),
    "schema_version": ((IntegralType,), "int"),
}


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that can't become a message, with its kind and id as far as it has them."""

    kind: str
    id: str
    reason: str


def check_schema(schema: StructType) -> tuple[str, ...]:
    """Give the names of the columns that make messages; raises GiveUp when the frame can't give any message."""
    names = tuple(name for name in schema.fieldNames() if name != ROW)
    columns = Columns(names, _SOURCE)
    if not columns.has_kind:
        raise GiveUp(f"{_SOURCE}: has no column 'kind'; add one, for example with lit('feed')")
    for field in schema.fields:
        expected = _TYPES.get(field.name)
        if expected is None or isinstance(field.dataType, (*expected[0], NullType)):
            continue
        if isinstance(field.dataType, TimestampNTZType):
            raise GiveUp(f"{_SOURCE}: column {field.name!r} has moments without an offset; cast it to timestamp")
        raise GiveUp(
            f"{_SOURCE}: column {field.name!r} is of type {field.dataType.simpleString()}; cast it to {expected[1]}"
        )
    return names


class BatchReader:
    """Reads messages from Arrow batches by the rules by which `dormice load` reads rows of Parquet."""

    def __init__(self, names: tuple[str, ...], rules: EnvelopeRules) -> None:
        self._names = names
        self._columns = Columns(names, _SOURCE)
        self._rules = rules

    def read(self, batch: Any) -> Iterator[Envelope | RefusedRow]:
        """Give the messages of one `pyarrow.RecordBatch`, in its order."""
        cells = zip(*(batch.column(name).to_pylist() for name in self._names), strict=True)
        for row in cells:
            try:
                yield parse_envelope(self._columns.to_fields(row), self._rules)
            except InvalidEnvelope as exc:
                named = dict(zip(self._names, row, strict=True))
                yield RefusedRow(str(named["kind"] or ""), str(named["id"] or ""), str(exc))
