"""Frames: the bytes by which the serializers of a schema registry say which schema a value or a key has.

JSON inside of a frame is read. What is Avro or Protobuf can't be read without the registry, and is refused with that
reason. Confluent's serializers write a zero byte and four bytes of the schema's id, or put the id into a header; those
of Apicurio may write an id of eight bytes; those of AWS Glue write eighteen bytes.
"""

import contextlib
from typing import Any, NamedTuple

from shared.messages.json_value import parse_json
from starter.records.record import DeadRecord, Headers, read_json, read_text

_FRAMES = {
    0: ("a schema registry's frame", (5, 9)),  # Confluent's, and Apicurio's with a long id
    3: ("the frame of AWS Glue", (18,)),
}
"""For each first byte, which no JSON begins with, whose frame it begins and how long that may be."""

VALUE_SCHEMA_HEADERS = ("__value_schema_id", "apicurio.value.globalId", "apicurio.value.contentId")
KEY_SCHEMA_HEADERS = ("__key_schema_id", "apicurio.key.globalId", "apicurio.key.contentId")
"""Headers that name the schema in the place of a frame."""

_CONFLUENT_BYTES = 5
_ADVICE = "produce JSON or JSON Schema, or convert it with Kafka Connect"


def read_value(raw: bytes, headers: Headers) -> Any:
    """Read a value of JSON, also from a frame; raises DeadRecord."""
    if raw[:1] and raw[0] in _FRAMES:
        return _open_frame(raw, "value", (dict,)).document
    schema = _find_schema(headers, VALUE_SCHEMA_HEADERS)
    if not schema:
        return read_json(raw, "value")

    return _read_own(raw, "value", schema).document


def read_key(raw: bytes, headers: Headers) -> str:
    """Read a key as text, also from a frame, where a string of JSON is its content; raises DeadRecord.

    A number is refused there: a key of Avro may have the same bytes and mean another number.
    """
    schema = _find_schema(headers, KEY_SCHEMA_HEADERS)
    if raw[:1] == b"\0":
        content = _open_frame(raw, "key", (dict, str))
    elif schema:
        content = _read_own(raw, "key", schema)
    else:
        return read_text(raw, "key")

    if isinstance(content.document, str):
        return content.document
    if not isinstance(content.document, dict):
        raise _refuse("key", f"is neither an object nor a string of JSON, and its header {schema} names a schema")
    return read_text(content.raw, "key")


class _Content(NamedTuple):
    """What is in a frame."""

    raw: bytes
    document: Any


def _open_frame(raw: bytes, field: str, types: tuple[type, ...]) -> _Content:
    whose, lengths = _FRAMES[raw[0]]
    for length in lengths:
        inner = raw[length:]
        with contextlib.suppress(ValueError):
            document = parse_json(inner)
            # the bytes of a short value of Avro may look like a number, so only what can be nothing else counts
            if isinstance(document, types):
                return _Content(inner, document)

    schema = f" (schema {int.from_bytes(raw[1:5])})" if raw[0] == 0 and len(raw) >= _CONFLUENT_BYTES else ""
    raise _refuse(field, f"begins with {whose}{schema} and holds no JSON, so it is Avro or Protobuf")


def _read_own(raw: bytes, field: str, schema: str) -> _Content:
    """Read what has no frame because a header names its schema."""
    try:
        return _Content(raw, parse_json(raw))
    except ValueError as exc:
        raise _refuse(field, f"is no JSON, and its header {schema} names a schema, so it is Avro or Protobuf") from exc


def _find_schema(headers: Headers, names: tuple[str, ...]) -> str:
    return next((name for name in names if name in headers), "") if headers else ""


def _refuse(field: str, flaw: str) -> DeadRecord:
    return DeadRecord("NotJson", f"{flaw}; {_ADVICE}", field)
