"""Records as topics hold them, read with options as they are typed."""

import json
from typing import Any

import pytest

from shared.messages.envelope import EnvelopeRules
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.record import DeadRecord, Record
from starter.starting.delivery import Delivery

RULES = EnvelopeRules({"feed": "short", "report": "long"}, payload_max_bytes=512)
TRACEPARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STRUCTURED = ("content-type", b"application/cloudevents+json; charset=UTF-8")
BINARY = {"ce_specversion": b"1.0", "ce_id": b"e-1", "ce_source": b"/shop", "ce_type": b"feed"}
EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "feed"}
Options = dict[str, Any]
Pairs = tuple[tuple[str, bytes | None], ...]
MAPPED: Options = {"kind": "feed", "id_from": "key"}


def write(value: Any) -> bytes:
    """Write JSON, or what Python takes for it."""
    return json.dumps(value).encode()


def record(value: Any, headers: Pairs | dict[str, bytes] = (), key: bytes | None = b"k-1") -> Record:
    """Make a record; what is no bytes and not None is written as JSON."""
    raw = value if value is None or isinstance(value, bytes) else write(value)
    pairs = tuple(headers.items()) if isinstance(headers, dict) else headers
    return Record("orders", 3, 17, 1_795_291_200_000, key, raw, pairs)


def decode(given_record: Record, **options: Any) -> Delivery:
    """Read one record with options as they are typed, both alone and as one of many."""
    read = FormatOptions.of_changes if options.pop("has_changes", False) else FormatOptions.read
    formats = Formats(read(**options), RULES)
    (found,) = formats.decode_many([given_record])
    if isinstance(found, DeadRecord):
        with pytest.raises(DeadRecord) as caught:
            formats.decode(given_record)
        assert str(caught.value) == str(found)
        raise found
    assert found == formats.decode(given_record)
    return found


def start(given_record: Record, **options: Any) -> dict[str, Any]:
    """Give what is no default in the envelope that a record starts."""
    envelope = decode(given_record, **options).envelope
    assert envelope is not None
    return envelope.model_dump(mode="json", exclude_defaults=True)


def stop(kind: str, message_id: str) -> Delivery:
    """Give what a record without a value asks for."""
    return Delivery(kind, message_id, "orders/3", 17)


def refuse(given_record: Record, **options: Any) -> DeadRecord:
    """Give the error of a dead record."""
    with pytest.raises(DeadRecord) as caught:
        decode(given_record, **options)
    return caught.value
