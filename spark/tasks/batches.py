"""Batches: checks the columns of a frame by its schema, and reads the messages in its Arrow batches."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import types

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from shared.messages.placement import workflow_id
from spark.tables import rows_of
from starter.files.columns import Columns
from starter.starting.receipts import Receipt, StartOutcome

ROW = "row"  # a manifest's own column: the row that a message comes from; not a part of the message

_SOURCE = "the frame"
_TEXTS = ("kind", "id", "lane", "tenant", "correlation_id", "idempotency_key")
_TYPES: dict[str, tuple[tuple[type[types.DataType], ...], str]] = {
    **dict.fromkeys(_TEXTS, ((types.StringType,), "string")),
    "scheduled_at": ((types.TimestampType, types.StringType), "timestamp"),
    "tolerance_seconds": ((types.IntegralType, types.FractionalType, types.DecimalType), "double"),
    "priority": ((types.IntegralType,), "int"),
    "schema_version": ((types.IntegralType,), "int"),
}


def check_schema(schema: types.StructType) -> tuple[str, ...]:
    """Give the names of the columns that make messages; raises GiveUp when the frame can't give any message."""
    names = tuple(name for name in schema.fieldNames() if name != ROW)
    if not Columns(names, _SOURCE).has_kind:
        raise GiveUp(f"{_SOURCE}: has no column 'kind'; add one, for example with lit('feed')")
    for field in schema.fields:
        accepted, wanted = _TYPES.get(field.name, ((types.DataType,), ""))
        if isinstance(field.dataType, types.TimestampNTZType) and wanted:
            raise GiveUp(f"{_SOURCE}: column {field.name!r} has moments without an offset; cast it to timestamp")
        if not isinstance(field.dataType, (*accepted, types.NullType)):
            found = field.dataType.simpleString()
            raise GiveUp(f"{_SOURCE}: column {field.name!r} is of type {found}; cast it to {wanted}")
    return names


def read_batch(
    batch: Any, names: tuple[str, ...], rules: EnvelopeRules
) -> Iterator[Envelope | Receipt[tuple[str, str]]]:
    """Give the messages of one `pyarrow.RecordBatch`; of a row that can't become one, the receipt that says why."""
    columns = Columns(names, _SOURCE)
    for row in rows_of([batch.select(names)]):
        try:
            yield parse_envelope(columns.to_fields(row), rules)
        except InvalidEnvelope as exc:
            named = dict(zip(names, row, strict=True))
            tag = str(named["kind"] or ""), str(named["id"] or "")
            yield Receipt(tag, workflow_id(*tag), StartOutcome.REJECTED, reason=str(exc), attempts=0)
