"""Filters: which of Spark's conditions become part of the visibility query."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import datasource

from starter.steering.selection import quote
from starter.steering.status.listing import ENDED_OTHERWISE

_NAMES = {"kind": "Kind", "lane": "Lane", "state": "State", "due_at": "DueAt"}
_SIGNS: dict[Any, str] = {
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.EqualTo: "=",
}
_STATUSES = {word: status.name.title().replace("_", "") for status, word in ENDED_OTHERWISE.items()}
"""States queried by the workflow's status: such a workflow ended without updating its State attribute."""


def push_down(filters: Sequence[Any]) -> tuple[list[str], list[datasource.Filter]]:
    """Give the conditions as parts of the visibility query, and the conditions that Spark must still check.

    Conditions on due times are in both, because the server stores moments less exactly.
    """
    parts: list[str] = []
    left: list[datasource.Filter] = []
    for wanted in filters:
        part = _translate(wanted)
        if part is not None:
            parts.append(part)
        if part is None or wanted.attribute == ("due_at",):
            left.append(wanted)
    return parts, left


def _translate(wanted: Any) -> str | None:
    name = ".".join(getattr(wanted, "attribute", ()))
    attribute = _NAMES.get(name)
    if attribute is None:
        return None
    if isinstance(wanted, datasource.IsNotNull):
        return f"{attribute} IS NOT NULL"
    if name == "due_at":
        return _translate_moment(wanted, attribute)
    if isinstance(wanted, datasource.EqualTo | datasource.In):
        values = wanted.value if isinstance(wanted, datasource.In) else (wanted.value,)
        if values and all(isinstance(value, str) for value in values):
            parts = [_state_is(value) if name == "state" else f"{attribute} = {quote(value)}" for value in values]
            return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"
    return None


def _state_is(value: str) -> str:
    if value in _STATUSES:
        return f"ExecutionStatus = '{_STATUSES[value]}'"
    return f"(State = {quote(value)} AND ExecutionStatus IN ('Running', 'Completed'))"


def _translate_moment(wanted: Any, attribute: str) -> str | None:
    """Widen a bound by a millisecond: the server may have rounded."""
    sign = _SIGNS.get(type(wanted))
    value = getattr(wanted, "value", None)
    if sign is None or not isinstance(value, datetime) or value.tzinfo is None:
        return None
    epoch = value.timestamp()
    low, high = (datetime.fromtimestamp(epoch + step, UTC).isoformat() for step in (-0.001, 0.001))
    if sign == "=":
        return f"{attribute} BETWEEN '{low}' AND '{high}'"
    return f"{attribute} {sign[0]}= '{low if sign[0] == '>' else high}'"
