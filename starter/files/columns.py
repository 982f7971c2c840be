"""Columns: what the cells of a CSV or Parquet row mean for an envelope."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, cast

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import Envelope
from shared.messages.json_value import is_kept, parse_json
from starter.files.table_options import check_names, show_names

_FIELDS = frozenset(Envelope.model_fields)  # pydantic makes this mapping anew at each look
NUMBER_FIELDS = ("schema_version", "priority", "tolerance_seconds")
_MOMENT_FIELDS = ("scheduled_at", "expires_at")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?")
_JSON_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class UnreadableValue:
    """A value of a table that no message can hold; `problem` is half a sentence that says why."""

    shown: str
    problem: str

    def __str__(self) -> str:
        return self.shown


class Columns:
    """What the columns of a table mean: envelope fields by name, all others parts of the payload."""

    def __init__(self, names: Sequence[str], source: str, *, is_text: bool = False) -> None:
        """Take the names in order; raises GiveUp when no row can become a message. `is_text`: see `read_cell`."""
        self._names = tuple(names)
        self._is_text = is_text
        others = [name for name in names if name not in _FIELDS]
        self.has_kind = "kind" in names
        """Whether rows can name their kind themselves."""
        self._has_others = bool(others)
        if "id" not in names:
            raise GiveUp(f"{source}: has no column 'id'; its columns are {show_names(names)}")

        check_names(names, source)
        if "" in names:
            raise GiveUp(f"{source}: column {names.index('') + 1} has no name; give it one")

        if "payload" in names and others:
            flaw = f"{source}: column {others[0]!r} is no field of the envelope"
            raise GiveUp(f"{flaw}, and beside a column 'payload' there is no place for it; drop one of the two")

    def to_fields(self, cells: Sequence[Any]) -> dict[str, Any]:
        """Turn a row into envelope fields; None and empty text are absent. Raises InvalidEnvelope."""
        fields: dict[str, Any] = {}
        payload: dict[str, Any] = {}
        for name, cell in zip(self._names, cells, strict=False):
            if cell is None or cell == "":
                continue
            if name in _FIELDS:
                fields[name] = read_field(name, cell)
            elif (value := self._read_other(name, cell)) is not None:
                payload[name] = value

        return {**fields, "payload": payload} if self._has_others else fields

    def _read_other(self, name: str, cell: Any) -> Any:
        return read_cell(cell) if self._is_text else read_value(name, cell)


def read_field(name: str, cell: Any) -> Any:
    """Give what a cell means for a field of the envelope, whose rules then check it; raises InvalidEnvelope."""
    if isinstance(cell, UnreadableValue):
        raise InvalidEnvelope(name, cell.problem)
    if name == "payload":
        return _read_payload(cell)
    if name in NUMBER_FIELDS:
        return read_number(cell)
    if name not in _MOMENT_FIELDS:
        return to_text(cell)

    return cell if isinstance(cell, datetime) else read_value(name, cell)


def _read_payload(cell: Any) -> Any:
    if not isinstance(cell, str):
        return read_value("payload", cell)
    try:
        return parse_json(cell)
    except ValueError as exc:
        if cell.lstrip().startswith(("{", "[")):
            problem = f"begins like JSON but {exc}; correct it, or quote it as a string"
            raise InvalidEnvelope("payload", problem) from exc
        return cell


def read_cell(text: str) -> Any:
    """Give the value of an untyped cell: a number, true, false or null as JSON writes them; all else is text.

    A number whose digits a float would not keep, such as a long account number, is text too.
    """
    if text in _JSON_WORDS:
        return _JSON_WORDS[text]
    if not _JSON_NUMBER.fullmatch(text):
        return text
    if not is_kept(text):
        return text

    return int(text) if text.removeprefix("-").isdigit() else float(text)


def read_number(cell: Any) -> Any:
    """Give the number that a cell holds, or the cell itself, which the envelope's own rule then rejects."""
    if isinstance(cell, str):
        with suppress(ValueError):
            value = parse_json(cell)
            return value if isinstance(value, int | float) else cell
    if isinstance(cell, Decimal) and cell.is_finite():
        cell = to_json(cell)
    if isinstance(cell, float) and math.isfinite(cell) and cell.is_integer():
        return int(cell)  # integers become floats in a column where one is missing

    return cell


def to_text(cell: Any) -> Any:
    """Give the text of a number or day that has only one, or the cell itself, which the envelope's rules then judge."""
    if isinstance(cell, Decimal) and cell.is_finite():
        return format(cell, "f")
    is_number = isinstance(cell, int) and not isinstance(cell, bool)
    is_day = isinstance(cell, date) and not isinstance(cell, datetime)
    return str(cell) if is_number or is_day else cell


def read_value(name: str, cell: Any) -> Any:
    """Give the JSON of a cell of a column; raises InvalidEnvelope, with the column's name, for what JSON lacks."""
    try:
        return to_json(cell)
    except ValueError as exc:
        raise InvalidEnvelope(name, str(exc)) from exc


def to_json(value: Any) -> Any:
    """Write dates as text, and decimals as CSV cells are read: a number where a float keeps it, else its text.

    Raises ValueError with half a sentence for a number or a value that JSON does not know.
    """
    if isinstance(value, UnreadableValue):
        raise ValueError(value.problem)  # noqa: TRY004 — as for other values that don't fit
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise ValueError(f"holds {value}, which JSON does not know; leave it out, or write it as text")
    if isinstance(value, Decimal):
        return read_cell(format(value, "f"))
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [to_json(item) for item in cast("list[Any]", value)]

    return value
