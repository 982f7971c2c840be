"""Changes as Debezium writes them: the rows of a table that were inserted, updated or deleted, with and without schema.

Its envelope has the row before and after the change; its transform ExtractNewRecordState leaves the row alone, with
`__deleted` where it keeps the last row of a delete. After a delete comes a tombstone of the same key. The key holds the
columns of the primary key. See https://debezium.io/documentation/reference/stable/connectors/postgresql.html.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from shared.messages.json_value import encode_json, parse_json
from starter.records.producers.frames import read_key, read_value
from starter.records.record import DeadRecord, Headers

FORMAT = "debezium"

_STARTING = frozenset("cur")  # created, updated, read by a snapshot
_DELETE = "d"
_TRUE = ("true", True)


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a row."""

    row: Any
    """The row after the change; of a row that was deleted, what is known of it: its last state and its key."""
    is_deleted: bool
    before: Any = None
    """The row before an update, if the database tells it."""


def is_change(document: Any) -> bool:
    """Return whether a value looks like Debezium's envelope."""
    document = _unwrap(document)
    return isinstance(document, dict) and "op" in document and ("after" in document or "before" in document)


def is_delete(document: Any) -> bool:
    """Return whether a value looks like Debezium's envelope of a deleted row."""
    return is_change(document) and _unwrap(document).get("op") == _DELETE and not _unwrap(document).get("after")


def read_change(value: bytes | None, headers: Headers, key: Any, document: Any = None) -> Change:
    """Read what became of a row; `key` is the record's, as `read_key_columns` gives it. Raises DeadRecord.

    `document` is the record's value if it is parsed already.
    """
    if value is None:
        return Change(_merge(None, key), is_deleted=True)

    parsed = read_value(value, headers) if document is None else document
    found = _unwrap(parsed)
    if found is None:
        return Change(_merge(None, key), is_deleted=True)
    if not isinstance(found, dict):
        raise DeadRecord("NotAnObject", "is no JSON object; send what Debezium writes", "value")
    change = cast("dict[str, Any]", found)
    if is_change(change):
        return _read_envelope(change, key)

    is_deleted = change.get("__deleted") in _TRUE or change.get("__op") == _DELETE
    after = _merge(change, key) if is_deleted else change
    return Change(after, is_deleted)


def read_key_columns(raw: bytes | None, headers: Headers) -> Any:
    """Give a key's columns by name; text for a key of another form, and None for a record without a key.

    Raises DeadRecord.
    """
    if raw is None:
        return None
    text = read_key(raw, headers)
    try:
        parsed = parse_json(text)
    except ValueError as exc:
        if text.startswith("Struct{"):
            flaw = "is written by StringConverter, which others can't read; set key.converter to JsonConverter"
            raise DeadRecord("NotJson", f"{flaw}, or name a column of the row with --id-from", "key") from exc
        return text

    columns = _unwrap(parsed)
    if isinstance(columns, str | dict):
        return cast("Any", columns)
    return text if columns is parsed else _to_text(columns)


def write_id(columns: Any) -> str:
    """Give the id that a key stands for: its one column, or a JSON list of several. Raises DeadRecord."""
    if not isinstance(columns, dict):
        return columns

    values = list(cast("dict[str, Any]", columns).values())
    if not values or None in values:
        raise DeadRecord("InvalidField", "has a column without a value; name another one with --id-from", "key")
    return _to_text(values[0]) if len(values) == 1 else _to_text(values)


def _read_envelope(change: Mapping[str, Any], key: Any) -> Change:
    operation, before, after = (change.get(name) for name in ("op", "before", "after"))
    if operation == _DELETE:
        return Change(_merge(_parse_row(before, "before"), key), is_deleted=True)

    if operation not in _STARTING:
        flaw = f"is {operation!r}"[:60]
        raise DeadRecord("InvalidField", f"{flaw}, and names no row; stop what it is about by hand", "op")
    if after is None:
        raise DeadRecord("MissingField", "is null, though the row lives on; let Debezium send whole rows", "after")
    return Change(_parse_row(after, "after"), is_deleted=False, before=_parse_row(before, "before"))


def _parse_row(row: Any, field: str) -> Any:
    """Give a row; those of MongoDB are JSON as text."""
    if not isinstance(row, str):
        return row
    try:
        return parse_json(row)
    except ValueError as exc:
        raise DeadRecord("NotJson", f"is text and {exc}; send what Debezium writes", field) from exc


def _merge(row: Any, key: Any) -> dict[str, Any]:
    """Put a deleted row together: of what is not in the key, its last state may have null."""
    known = cast("dict[str, Any]", row) if isinstance(row, dict) else {}
    columns = cast("dict[str, Any]", key) if isinstance(key, dict) else {}
    return {**known, **columns}


def _unwrap(document: Any) -> Any:
    """Take away what JsonConverter puts around a document with `schemas.enable`."""
    if isinstance(document, dict):
        wrapper = cast("dict[str, Any]", document)
        if wrapper.keys() == {"schema", "payload"} and isinstance(wrapper["schema"], dict):
            return wrapper["payload"]
    return cast("Any", document)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()
