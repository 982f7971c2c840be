"""The mapping of rows: which parts of a table's row or a JSON line fill which fields of the envelope."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.errors import GiveUp, InvalidEnvelope, InvalidSetting
from starter.files.columns import Columns, read_cell, read_field, read_value
from starter.files.table_options import TableOptions, check_names, show_names
from starter.records.local_moments import LocalMoments
from starter.records.mapping import FormatOptions, RecordView, find_kind, map_fields
from starter.records.record import DeadRecord, ErrorClass

_MOMENTS = ("scheduled_at", "expires_at")


@dataclass(frozen=True, slots=True)
class RowMapping:
    """Which parts of a row fill which fields: without `--id-from` those of their names; `lane` is for rows without."""

    options: FormatOptions = field(default_factory=FormatOptions)
    lane: str | None = None
    table: TableOptions = field(default_factory=TableOptions)
    local: LocalMoments = field(default_factory=LocalMoments)

    def check(self, form: str) -> None:
        """Raise InvalidSetting for what rows of files and tables, in this format, don't have."""
        if form != "csv" and self.table != TableOptions():
            raise InvalidSetting("--columns, --header, --no-header and --fill-rows: are for CSV; leave them out")

        options = self.options
        if any(name == "delay" for name, _ in options.extras):
            flaw = "counts from a record's timestamp, which rows do not have"
            raise InvalidSetting(f"--delay-from: {flaw}; name the moment with --scheduled-at-from")

        origins = {"kind": options.kind, "id-from": options.id_from, "payload-from": options.payload_from}
        origins |= {f"{name.replace('_', '-')}-from": origin for name, origin in options.extras}
        for name, origin in origins.items():
            if origin is not None and not isinstance(origin, str) and origin.part != "value":
                what = "key" if origin.part == "key" else "headers"
                raise InvalidSetting(f"--{name}: is {origin}, but rows have no {what}; write a JSON pointer like /id")

    def reader(self, names: Sequence[str], source: str, *, is_text: bool = False) -> "_NamedColumns | _MappedColumns":
        """Give the reader of a table's rows, see `Columns`; raises GiveUp when the table can't give any message."""
        if (origin := self.options.id_from) is None:
            return _NamedColumns(Columns(names, source, is_text=is_text), tuple(names), self)

        check_names(names, source)
        if origin.steps[0] not in names:
            known = f"its columns are {show_names(names)}"
            raise GiveUp(f"{source}: has no column {origin.steps[0]!r}, which --id-from names; {known}")
        return _MappedColumns(tuple(names), self, is_text)

    def to_fields(self, document: Any) -> Mapping[str, Any]:
        """Give the envelope fields of one JSON value; raises InvalidEnvelope."""
        view = RecordView(None, {}, document)
        try:
            if self.options.id_from is not None:
                return self.complete(map_fields(self.options, view))
            if not isinstance(document, Mapping):
                raise InvalidEnvelope(
                    "envelope", "is no JSON object; send one, or map it with --id-from", "NotAnObject"
                )
            return self.complete(document)  # pyright: ignore[reportUnknownArgumentType] — the envelope's rules check it
        except DeadRecord as exc:
            raise to_invalid_envelope(exc) from exc

    def complete(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill in the kind and lane where a row has none, and read local moments.

        Raises DeadRecord and InvalidEnvelope.
        """
        added: dict[str, Any] = {}
        if self.options.kind is not None and fields.get("kind") is None:
            added["kind"] = find_kind(self.options.kind, RecordView(None, {}, fields))
        if self.lane is not None and fields.get("lane") is None:
            added["lane"] = self.lane

        for name in _MOMENTS:
            if (value := fields.get(name)) is not None:
                added[name] = self._read_moment(name, value)
        return {**fields, **added} if added else fields

    def _read_moment(self, name: str, value: Any) -> Any:
        try:
            return self.local.read_moment(value)
        except ValueError as exc:
            raise InvalidEnvelope(name, str(exc)) from exc


@dataclass(frozen=True, slots=True)
class _NamedColumns:
    columns: Columns
    names: tuple[str, ...]
    mapping: RowMapping

    def to_fields(self, cells: Sequence[Any]) -> Mapping[str, Any]:
        self.mapping.table.check_cells(cells, self.names)
        try:
            return self.mapping.complete(self.columns.to_fields(cells))
        except DeadRecord as exc:
            raise to_invalid_envelope(exc) from exc


@dataclass(frozen=True, slots=True)
class _MappedColumns:
    """Columns that make a JSON object, which is then mapped; empty cells are left out."""

    names: tuple[str, ...]
    mapping: RowMapping
    is_text: bool

    def to_fields(self, cells: Sequence[Any]) -> Mapping[str, Any]:
        self.mapping.table.check_cells(cells, self.names)
        pairs = zip(self.names, cells, strict=False)
        document = {name: cell for name, cell in pairs if cell is not None and cell != ""}
        found = self.mapping.to_fields(document)
        fields = {name: read_field(name, value) for name, value in found.items() if name != "payload"}
        return {**fields, "payload": self._read_payload(found["payload"])}

    def _read_payload(self, payload: Any) -> Any:
        if self.is_text:  # only the payload: an id keeps its leading zeroes, and other fields are text anyway
            return _read_cells(payload)
        if self.mapping.options.payload_from is not None:
            return read_value("payload", payload)
        return {name: read_value(name, cell) for name, cell in payload.items()}


def _read_cells(payload: Any) -> Any:
    """Parse a payload that is one cell, or the cells of a whole row."""
    if isinstance(payload, str):
        return read_cell(payload)
    read = ((name, read_cell(text)) for name, text in payload.items())
    return {name: value for name, value in read if value is not None}


def to_invalid_envelope(exc: DeadRecord) -> InvalidEnvelope:
    """Translate the bridge's error for a record into the one for a row."""
    flaws: dict[ErrorClass, Any] = {"MissingKey": "MissingField", "CloudEventProblem": "InvalidField"}
    return InvalidEnvelope(exc.field or "envelope", exc.reason, flaws.get(exc.error_class, exc.error_class))
