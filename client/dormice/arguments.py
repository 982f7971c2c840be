"""Arguments: checks what a caller gives, and writes it as the API takes it; an error names the argument."""

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, TypedDict, get_args, get_type_hints
from urllib.parse import quote

from dormice.errors import DormiceError, GiveUp, InvalidEnvelope

Types = type | UnionType


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


OPTION_TYPES: dict[str, type] = {
    name: (get_args(hint) or (hint,))[0]  # `datetime | None` without its None
    for name, hint in get_type_hints(Options).items()
}
SIGNAL_TYPES = {name: OPTION_TYPES[name] for name in ("at", "after", "priority", "lane")} | {"reason": str}
"""The types of what signals take; a payload may be anything."""
SYNONYMS = {"scheduled_at": "at", "due_at": "at", "delay": "after", "tolerance_seconds": "tolerance"}
"""What the API, or a handler, calls an argument, and how it is called here."""
_WANTED: dict[Any, str] = {
    datetime: "a datetime with a time zone, such as datetime.now(UTC)",
    timedelta: "a timedelta, such as timedelta(minutes=5)",
    str: "a text",
    int: "a whole number",
    Mapping: "a dict",
}


def check(
    name: str,
    value: Any,
    wanted: Types,
    error: type[DormiceError] = InvalidEnvelope,
    advice: str = "",
    *,
    is_secret: bool = False,
) -> None:
    """Raise an error that names the argument if its value is of another type; it shows no secret."""
    is_flag = isinstance(value, bool) and wanted is int  # True is an int to Python
    if isinstance(value, wanted) and not is_flag:
        return

    shown = f"of type {type(value).__name__}" if is_secret else describe(value)
    raise error(f"{name}: is {shown}; give {advice or _WANTED[wanted]}", field=name)


def describe(value: Any) -> str:
    """Describe a wrong value, also a very long one."""
    text = repr(value)
    shown = text if len(text) <= 40 else f"{text[:39]}…"
    return "None" if value is None else f"{shown}, of type {type(value).__name__}"


def read_name(kind: Any, message_id: Any) -> tuple[str, str]:
    """Give the kind and id of a message; a whole number as an id becomes its text, as everywhere in dormice."""
    is_number = isinstance(message_id, int) and not isinstance(message_id, bool)
    text: Any = str(message_id) if is_number else message_id
    for name, value, example in (("kind", kind, "reminder"), ("id", text, "ada")):
        check(name, value, str, advice=f"a text, such as {example!r}")
        if not value:
            raise InvalidEnvelope(f"{name}: is empty; give a text, such as {example!r}", field=name)
        if re.search("[\ud800-\udfff]", value):
            raise InvalidEnvelope(
                f"{name}: holds half of a character, which UTF-8 can't encode; correct it", field=name
            )
        if value in (".", ".."):
            flaw = f"is {value!r}, which in a URL is a step in the path"
            raise InvalidEnvelope(f"{name}: {flaw}; give another text, such as {example!r}", field=name)

    return kind, text


def to_path(kind: str, message_id: str) -> str:
    """Give the path of a message."""
    return "/v1/messages/" + "/".join(quote(name, safe="").replace(".", "%2E") for name in (kind, message_id))


def to_fields(due: str, given: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Give arguments as the API takes them, `due` being its name for the moment; raises InvalidEnvelope."""
    fields = dict(given)
    for name, value in given.items():
        if name not in types and name != "payload":
            raise InvalidEnvelope(f"{name}: is no argument here{_suggest(name, types)}", field=name)
        if name in types and value is not None:
            check(name, value, types[name])
        if isinstance(value, datetime):
            fields[name] = to_moment(value, name)

    at = fields.pop("at", None)
    after = fields.pop("after", None)
    if at is not None and after is not None:
        raise InvalidEnvelope("at: is given beside after; leave one of them out", field="at")
    fields[due] = at if after is None else _add(after)
    if tolerance := fields.pop("tolerance", None):
        fields["tolerance_seconds"] = tolerance.total_seconds()
    return {name: value for name, value in fields.items() if name == "payload" or value not in (None, "")}


def to_query(given: Any) -> dict[str, Any]:
    """Give the parameters of an address as httpx takes them."""
    if given is None:
        return {}
    check("query", given, Mapping, GiveUp)
    said = {name: value for name, value in given.items() if value not in (None, "")}
    return {name: to_moment(value, name) if isinstance(value, datetime) else value for name, value in said.items()}


def to_json(document: Any) -> bytes:
    """Write JSON; dataclasses, pydantic models and datetimes in it are translated; raises InvalidEnvelope."""
    try:
        return json.dumps(document, default=_translate, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidEnvelope(f"payload: can't be written as JSON ({exc}); use plain values", field="payload") from exc


def to_moment(moment: datetime, field: str = "payload") -> str:
    """Write a moment; raises InvalidEnvelope for one without a time zone."""
    if moment.tzinfo is None:
        raise InvalidEnvelope(f"{field}: {moment.isoformat()} has no time zone; add one, for example UTC", field=field)
    return moment.isoformat()


def _suggest(name: str, known: Mapping[str, type]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    nearest = near[0] if near else ""
    like = SYNONYMS.get(name, nearest)
    return f"; did you mean {like}?" if like in known else f"; use {', '.join(known)}"


def _add(after: timedelta) -> str:
    try:
        return (datetime.now(UTC) + after).isoformat()
    except OverflowError as exc:
        raise InvalidEnvelope(
            f"after: is {after}, which no calendar has; give ten years at most", field="after"
        ) from exc


def _translate(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_moment(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is none of its types")
