"""Documents: what goes to the API and comes from it; moments always have a time zone."""

import dataclasses
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, TypedDict, Unpack

from dormice.errors import InvalidEnvelope


class Options(TypedDict, total=False):
    """What may be said of a message beside its name and payload; `if_…` are the conditions of an upsert."""

    at: datetime | None
    after: timedelta | None
    tolerance: timedelta
    expires_at: datetime
    lane: str
    priority: int
    tenant: str
    correlation_id: str
    idempotency_key: str
    if_version: int
    if_due_before: datetime


class Envelope(SimpleNamespace):
    """A message to be started: due `at` a moment or `after` a time, at once without either."""

    def __init__(self, kind: str, id: str, payload: Any = None, **options: Unpack[Options]) -> None:
        super().__init__(kind=kind, id=id, payload=payload, **options)


class Receipt(NamedTuple):
    """What became of a start, an upsert or a signal, see README.md; `item` is the caller's."""

    item: Any
    outcome: str
    reason: str = ""
    field: str = ""


class MessageView(SimpleNamespace):
    """One message with all that the API says of it; what nobody could tell, or a list does not have, is None."""

    state: str
    due_at: datetime | None
    why: str | None
    version: int | None
    payload: Any
    result: Any
    decisions: list[dict[str, Any]] | None
    parked_reason: str | None
    note: str | None

    def __init__(self, document: Mapping[str, Any]) -> None:
        due_at = document["due_at"] and datetime.fromisoformat(document["due_at"])
        super().__init__(**{**dict.fromkeys(MessageView.__annotations__), **document, "due_at": due_at})


def to_fields(due: str, at: datetime | None = None, after: timedelta | None = None, **given: Any) -> dict[str, Any]:
    """Give arguments as the API takes them, `due` being its name for the moment; raises InvalidEnvelope."""
    if at is not None and after is not None:
        raise InvalidEnvelope("at: is given beside after; leave one of them out", field="at")
    if tolerance := given.pop("tolerance", None):
        given["tolerance_seconds"] = tolerance.total_seconds()
    given[due] = at if after is None else datetime.now(UTC) + after
    said = {name: value for name, value in given.items() if name == "payload" or value not in (None, "")}
    return {name: _to_moment(value, name) if isinstance(value, datetime) else value for name, value in said.items()}


def to_json(document: Any) -> bytes:
    """Write JSON; dataclasses, pydantic models and datetimes in it are translated; raises InvalidEnvelope."""
    try:
        return json.dumps(document, default=_translate, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidEnvelope(f"payload: can't be written as JSON ({exc}); use plain values", field="payload") from exc


def _to_moment(moment: datetime, field: str = "payload") -> str:
    if moment.tzinfo is None:
        raise InvalidEnvelope(f"{field}: {moment.isoformat()} has no time zone; add one, for example UTC", field=field)
    return moment.isoformat()


def _translate(value: Any) -> Any:
    if isinstance(value, datetime):
        return _to_moment(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is none of its types")
