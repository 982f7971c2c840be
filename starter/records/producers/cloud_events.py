"""CloudEvents 1.0 as records carry them: binary (attributes in headers) and structured (one JSON document).

Follows §3 of the specification's Kafka protocol binding. Header values are plain UTF-8: percent-encoding belongs to
the HTTP binding, so a "%" stays a "%".
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, cast

from starter.records.producers.frames import read_value
from starter.records.record import DeadRecord, Headers, read_json, read_text

_STRUCTURED = "application/cloudevents"
_STRUCTURED_JSON = (_STRUCTURED, "application/cloudevents+json")
_REQUIRED = ("specversion", "id", "source", "type")
_OPTIONAL = ("subject", "correlationid", "datacontenttype")


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """An event with all required attributes; optional ones that are absent are empty."""

    type: str
    message_id: str
    """The id of the event's message: the event's subject if it has one, else the event's id.

    A message stands for a thing, so the next event on that thing revises it. The event's id would make a new message of
    each event; one-shot notifications want that: `--id-from header:ce_id`. Subjects are unique within one source only:
    a topic with several sources needs another `--id-from` if they collide.
    """
    correlation_id: Any
    data: Any
    attributes: dict[str, str]
    """The attributes of a structured event, under the header names that a binary event uses."""


def read_event(value: bytes, headers: Headers) -> CloudEvent | None:
    """Read a record's event, or give None when it holds none; raises DeadRecord.

    The content-type counts before `ce_specversion`: a structured event may repeat its attributes as headers. A binary
    event with an empty value has no data: its payload is null.
    """
    raw_type = headers.get("content-type")
    # compared as bytes, before anything is decoded: most records are no events
    if raw_type is not None and raw_type[: len(_STRUCTURED)].lower() == _STRUCTURED.encode():
        return _read_structured(value, _media_type(read_text(raw_type, "content-type")))
    if headers.get("ce_specversion") is None:
        return None

    content_type = "" if raw_type is None else read_text(raw_type, "content-type")
    given = ((name, headers.get(f"ce_{name}")) for name in (*_REQUIRED, "subject", "correlationid"))
    attributes = {name: read_text(raw, f"ce_{name}") for name, raw in given if raw is not None}
    _check(attributes, "ce_")
    _refuse_other_than_json(content_type, "content-type")

    data = read_value(value, headers) if value else None
    return _make(attributes, data, {})


def _read_structured(value: bytes, media_type: str) -> CloudEvent:
    if media_type not in _STRUCTURED_JSON:
        raise _flaw("content-type", f"is {media_type[:60]!r}; send events as {_STRUCTURED_JSON[1]}")

    document = read_value(value, {})
    if not isinstance(document, dict):
        raise DeadRecord("NotAnObject", "is no JSON object; send one CloudEvent", "value")

    event = cast("dict[str, Any]", document)
    # in the JSON format, §2.2, null means that an attribute is absent
    attributes = {name: event[name] for name in (*_REQUIRED, *_OPTIONAL) if event.get(name) is not None}
    _check(attributes, "")
    as_headers = {
        f"ce_{name}": value if isinstance(value, str) else json.dumps(value)  # the canonical form, specification §3
        for name, value in event.items()
        if isinstance(value, str | int) and name not in ("data", "data_base64")
    }

    return _make(attributes, _read_data(event, attributes.get("datacontenttype", "")), as_headers)


def _read_data(event: dict[str, Any], content_type: str) -> Any:
    encoded = event.get("data_base64")
    if encoded is None:
        return event.get("data")
    if "data" in event:
        raise _flaw("data_base64", "stands beside data; send one of the two")
    if not isinstance(encoded, str):
        raise _flaw("data_base64", "is no string; send Base64 of JSON")

    _refuse_other_than_json(content_type, "datacontenttype")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as exc:  # ValueError: characters beyond ASCII
        raise _flaw("data_base64", f"is no Base64 ({exc}); correct it") from exc

    return read_json(raw, "data_base64")


def _check(attributes: dict[str, Any], prefix: str) -> None:
    if missing := next((name for name in _REQUIRED if name not in attributes), None):
        raise _flaw(prefix + missing, "is missing; every CloudEvent needs one")
    for name, value in attributes.items():
        if name != "correlationid" and (not isinstance(value, str) or not value):
            raise _flaw(prefix + name, "must be a string that is not empty; correct it")
    if attributes["specversion"] != "1.0":
        raise _flaw(f"{prefix}specversion", f"is {attributes['specversion'][:40]!r}; send CloudEvents 1.0")


def _make(attributes: dict[str, Any], data: Any, as_headers: dict[str, str]) -> CloudEvent:
    message_id = attributes.get("subject", attributes["id"])
    return CloudEvent(attributes["type"], message_id, attributes.get("correlationid", ""), data, as_headers)


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _refuse_other_than_json(content_type: str, field: str) -> None:
    """Accept what the JSON event format, §3.1, counts as JSON; no type means JSON, too."""
    media_type = _media_type(content_type)
    if media_type and not media_type.endswith(("/json", "+json")):
        raise _flaw(field, f"is {media_type[:60]!r}; send data as application/json")


def _flaw(field: str, reason: str) -> DeadRecord:
    return DeadRecord("CloudEventProblem", reason, field)
