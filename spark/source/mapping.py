"""The mapping of rows: what the parts of a table's row, a JSON line or a record mean for an envelope, as options say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.errors import InvalidEnvelope, InvalidSetting
from starter.files.columns import Columns, read_cell, read_number, to_json
from starter.files.rows import Reader
from starter.records.mapping import FormatOptions, find_kind, map_fields
from starter.records.origins import KeyOrigin, PointerOrigin, RecordView
from starter.records.record import DeadRecord, ErrorClass


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Which parts of a row fill which fields; without `--id-from`, parts are fields by their names.

    `--kind` and `--lane` are those of rows that name none. Rows have neither a key nor headers.
    """

    options: FormatOptions = field(default_factory=FormatOptions)
    lane: str | None = None

    def check(self) -> None:
        """Raise InvalidSetting for an origin that rows of files and tables don't have."""
        told = {"kind": self.options.kind, "id-from": self.options.id_from, "payload-from": self.options.payload_from}
        told |= {f"{name.replace('_', '-')}-from": origin for name, origin in self.options.extras}
        for name, origin in told.items():
            if origin is not None and not isinstance(origin, str | PointerOrigin):
                what = "key" if isinstance(origin, KeyOrigin) else "headers"
                raise InvalidSetting(f"--{name}: is {origin}, but rows have no {what}; write a JSON pointer like /id")

    def reader(self, names: Sequence[str], source: str, *, is_text: bool = False) -> Reader:
        """Give what reads the rows of a table, see `Columns`; raises GiveUp when no message could come of it."""
        if self.options.id_from is None:
            return _NamedColumns(Columns(names, source, is_text=is_text), self)
        return _MappedColumns(tuple(names), self, is_text=is_text)

    def to_fields(self, document: Any) -> Mapping[str, Any]:
        """Give the envelope fields of one JSON value; raises InvalidEnvelope."""
        sight = RecordView(None, {}, document)
        try:
            if self.options.id_from is not None:
                return self.complete(map_fields(self.options, sight))
            if not isinstance(document, Mapping):
                raise InvalidEnvelope(
                    "envelope", "is no JSON object; send one, or map it with --id-from", "NotAnObject"
                )
            return self.complete(document)  # pyright: ignore[reportUnknownArgumentType] — the envelope's rules judge it
        except DeadRecord as exc:
            raise to_invalid_envelope(exc) from exc

    def complete(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill in the kind and lane of a row that names none; raises DeadRecord."""
        added: dict[str, Any] = {}
        if self.options.kind is not None and fields.get("kind") is None:
            added["kind"] = find_kind(self.options.kind, RecordView(None, {}, fields))
        if self.lane is not None and fields.get("lane") is None:
            added["lane"] = self.lane
        return {**fields, **added} if added else fields


class _NamedColumns:
    """Columns that are fields by their names."""

    def __init__(self, columns: Columns, mapping: RowMapping) -> None:
        self._columns = columns
        self._mapping = mapping

    def to_fields(self, cells: Sequence[Any]) -> Mapping[str, Any]:
        try:
            return self._mapping.complete(self._columns.to_fields(cells))
        except DeadRecord as exc:
            raise to_invalid_envelope(exc) from exc


class _MappedColumns:
    """Columns that are the parts of a JSON object, which is mapped; empty cells are absent."""

    def __init__(self, names: tuple[str, ...], mapping: RowMapping, *, is_text: bool) -> None:
        self._names = names
        self._mapping = mapping
        self._is_text = is_text

    def to_fields(self, cells: Sequence[Any]) -> Mapping[str, Any]:
        if len(cells) > len(self._names):
            raise InvalidEnvelope(
                "envelope", f"has {len(cells)} cells for {len(self._names)} columns; quote its commas"
            )
        pairs = zip(self._names, cells, strict=False)
        document = {name: to_json(cell) for name, cell in pairs if cell is not None and cell != ""}
        fields = dict(self._mapping.to_fields(document))
        if "priority" in fields:
            fields["priority"] = read_number(fields["priority"])
        if self._is_text:  # only here: an id keeps its leading zeroes, and whatever else is text by itself
            fields["payload"] = _read_cells(fields["payload"])
        return fields


def _read_cells(payload: Any) -> Any:
    """Give the payload that one cell holds, or the cells of a whole row."""
    if isinstance(payload, str):
        return read_cell(payload)
    read = ((name, read_cell(text)) for name, text in payload.items())
    return {name: value for name, value in read if value is not None}


def to_invalid_envelope(exc: DeadRecord) -> InvalidEnvelope:
    """Say of a row what the bridge says of a record."""
    flaws: dict[ErrorClass, Any] = {"MissingKey": "MissingField", "CloudEventProblem": "InvalidField"}
    return InvalidEnvelope(exc.field or "envelope", exc.reason, flaws.get(exc.error_class, exc.error_class))
