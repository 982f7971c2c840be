"""What Debezium, the serializers of schema registries, and Spring write in ways of their own."""

import json
from typing import Any

import pytest

from shared.errors import InvalidSetting
from starter.records.mapping import FormatOptions
from starter.records.record import Record
from starter.starting.delivery import Delivery
from tests.support.record_samples import (
    BINARY,
    EVENT,
    MAPPED,
    STRUCTURED,
    TRACEPARENT,
    Options,
    decode,
    record,
    refuse,
    start,
    stop,
    write,
)

CHANGES: Options = {"has_changes": True, "kind": "feed"}
BY_COLUMN: Options = CHANGES | {"id_from": "/n"}
SCHEMA = {"type": "struct", "fields": [{"type": "int32", "field": "id"}]}
ROW = {"id": 1, "n": 5}
KEY = write({"id": 1})
FRAME = b"\0\0\0\x04\xd2"
GLUE = b"\x03\0" + bytes(range(16))
GUID = b"\x01" + bytes(range(16))
SPRING = {
    "ce_specversion": b'"1.0"',
    "ce_id": b'"e-1"',
    "ce_source": b'"/shop"',
    "ce_type": b'"feed"',
    "contentType": b'"application/json"',
}


def change(operation: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    """Make what Debezium writes of a row."""
    source = {"version": "3.1.0.Final", "connector": "postgresql", "table": "orders", "lsn": 24023128}
    return {"before": before, "after": after, "source": source, "transaction": None, "op": operation, "ts_ms": 1}


def wrap(payload: Any) -> dict[str, Any]:
    """Put a document into what JsonConverter writes with `schemas.enable`."""
    return {"schema": SCHEMA, "payload": payload}


def feed(message_id: str, payload: Any = None, **more: Any) -> dict[str, Any]:
    """Give a message of the kind feed without what is default."""
    fields = {"kind": "feed", "id": message_id, "lane": "short", **more}
    return fields if payload is None else {**fields, "payload": payload}


STARTS: list[tuple[Record, Options, dict[str, Any]]] = [
    *((record(change(operation, None, ROW), key=KEY), CHANGES, feed("1", ROW)) for operation in "cur"),
    (record(change("u", ROW, ROW | {"x": 2}), key=KEY), CHANGES, feed("1", ROW | {"x": 2})),
    (record(wrap(change("c", None, ROW)), key=write(wrap({"id": 1}))), CHANGES, feed("1", ROW)),
    (record(wrap(change("c", None, ROW)), key=write(wrap(1))), CHANGES, feed("1", ROW)),
    (record(change("c", None, ROW), key=write({"id": 1, "region": "DE"})), CHANGES, feed('[1,"DE"]', ROW)),
    (record(change("c", None, ROW), key=b"1"), CHANGES, feed("1", ROW)),
    (record(change("c", None, ROW), key=b"007"), CHANGES, feed("007", ROW)),
    (record(change("c", None, ROW), key=b'"a b"'), CHANGES, feed("a b", ROW)),
    (record(change("c", None, ROW), key=write({"id": 1})), CHANGES | {"id_from": "key:/id"}, feed("1", ROW)),
    (record(change("c", None, ROW), key=None), BY_COLUMN, feed("5", ROW)),
    (record(change("c", None, ROW), key=b"Struct{id=1}"), BY_COLUMN, feed("5", ROW)),
    (record(change("u", {"id": 1, "n": None}, ROW), key=KEY), BY_COLUMN, feed("5", ROW)),
    (record(change("c", None, json.dumps(ROW)), key=KEY), CHANGES, feed("1", ROW)),
    (record(change("c", None, ROW), {"what": b"feed"}, KEY), CHANGES | {"kind": "header:what"}, feed("1", ROW)),
    (record(change("c", None, ROW), key=FRAME + KEY), CHANGES, feed("1", ROW)),
    (record(FRAME + write(change("c", None, ROW)), key=KEY), CHANGES, feed("1", ROW)),
    (record(ROW | {"__deleted": "false"}, key=KEY), CHANGES, feed("1", ROW | {"__deleted": "false"})),
    (record(ROW | {"__op": "u"}, key=KEY), CHANGES, feed("1", ROW | {"__op": "u"})),
    (record(ROW, key=KEY), CHANGES, feed("1", ROW)),
    (
        record(change("c", None, ROW | {"at": 1_795_291_200_000, "p": 2}), key=KEY),
        CHANGES | {"scheduled_at_from": "/at", "priority_from": "/p", "payload_from": "/n"},
        feed("1", 5, scheduled_at="2026-11-21T20:00:00Z", priority=2),
    ),
    (record(7, key=KEY), {"kind": "feed", "id_from": "key:/id"}, feed("1", 7)),
    (record(7, key=write(wrap(ROW))), {"kind": "feed", "id_from": "key:/payload/n"}, feed("5", 7)),
    (record(FRAME + write({"n": 1})), MAPPED, feed("k-1", {"n": 1})),
    (record(b"\0" * 8 + b"\7" + write({"n": 1})), MAPPED, feed("k-1", {"n": 1})),
    (record(GLUE + write({"n": 1})), MAPPED, feed("k-1", {"n": 1})),
    (record(FRAME + write({"kind": "feed", "id": "a"})), {}, feed("a")),
    (record({"n": 1}, {"__value_schema_id": GUID}), MAPPED, feed("k-1", {"n": 1})),
    (record(7, key=FRAME + b'"a"'), MAPPED, feed("a", 7)),
    (record(7, {"__key_schema_id": GUID}, b'"a"'), MAPPED, feed("a", 7)),
    (record(7, {"__key_schema_id": GUID}, KEY), {"kind": "feed", "id_from": "key:/id"}, feed("1", 7)),
    (record(FRAME + write({"n": 1}), BINARY), {}, feed("e-1", {"n": 1})),
    (record({"n": 1}, SPRING), {}, feed("e-1", {"n": 1})),
    (record({"n": 1}, SPRING | {"ce_subject": rb'"a \"b\""'}), {}, feed('a "b"', {"n": 1})),
    (record({"n": 1}, SPRING), {"id_from": "header:ce_id"}, feed("e-1", {"n": 1})),
    (
        record({"n": 1}, {name.replace("ce_", "ce-"): raw for name, raw in SPRING.items()}),
        {"id_from": "header:ce-id"},
        feed("e-1", {"n": 1}),
    ),
    (record({"n": 1}, {name.replace("ce_", "ce-"): raw for name, raw in BINARY.items()}), {}, feed("e-1", {"n": 1})),
    (record({"n": 1}, {name.replace("ce_", "Ce-"): raw for name, raw in BINARY.items()}), {}, feed("e-1", {"n": 1})),
    (
        record({"n": 1}, {name.replace("ce_", "cloudEvents:"): raw for name, raw in BINARY.items()}),
        {},
        feed("e-1", {"n": 1}),
    ),
    (
        record({"n": 1}, BINARY | {"ce_source": b'"/shop"', "spring_json_header_types": b"{}"}),
        {},
        feed("e-1", {"n": 1}),
    ),
    (record(1, {"id": b'"a"', "spring_json_header_types": b"{}"}), MAPPED | {"id_from": "header:id"}, feed("a", 1)),
    (record(1, {"id": b'"a"'}), MAPPED | {"id_from": "header:id"}, feed('"a"', 1)),
    (record({"n": 1}, BINARY | {"ce_subject": b'"a"'}), {}, feed('"a"', {"n": 1})),
    (
        record(
            EVENT | {"data": {"n": 1}},
            {"contentType": b'"%s"' % STRUCTURED[1], "spring_json_header_types": b"{}"},
        ),
        {},
        feed("e-1", {"n": 1}),
    ),
]

STOPS: list[tuple[Record, Options, str]] = [
    (record(change("d", ROW), key=KEY), CHANGES, "1"),
    (record(change("d", {"id": 1}), key=KEY), CHANGES, "1"),
    (record(change("d"), key=KEY), CHANGES, "1"),
    (record({"before": {"id": 1}, "after": None, "op": "d"}, key=KEY), CHANGES, "1"),
    (record(wrap(change("d", ROW)), key=write(wrap({"id": 1}))), CHANGES, "1"),
    (record(None, key=write(wrap({"id": 1}))), CHANGES, "1"),
    (record(None, key=KEY), CHANGES, "1"),
    (record(b"null", key=KEY), CHANGES, "1"),
    (record(None, key=write({"id": 1, "region": "DE"})), CHANGES, '[1,"DE"]'),
    (record(None, key=b"1"), CHANGES, "1"),
    (record(change("d", ROW), key=KEY), BY_COLUMN, "5"),
    (record(change("d", ROW), key=b"Struct{id=1}"), BY_COLUMN, "5"),
    (record(change("d", {"id": 1}), key=write({"n": 5})), BY_COLUMN, "5"),
    (record(None, key=write({"n": 5})), BY_COLUMN, "5"),
    (record(None, key=KEY), CHANGES | {"id_from": "key:/id"}, "1"),
    (record(None, {"what": b"feed"}, KEY), CHANGES | {"kind": "header:what"}, "1"),
    (record(ROW | {"__deleted": "true"}, key=KEY), CHANGES, "1"),
    (record(ROW | {"__deleted": True}, key=KEY), CHANGES, "1"),
    (record(ROW | {"__op": "d"}, key=KEY), BY_COLUMN, "5"),
    (record(None, key=FRAME + KEY), CHANGES, "1"),
    (record(None, key=KEY), {"kind": "feed", "id_from": "key:/id"}, "1"),
    (record(None, key=FRAME + b'"1"'), MAPPED, "1"),
    (record(None, {"ce-specversion": b'"1.0"', "ce-id": b'"1"'}), {"kind": "feed", "id_from": "header:ce_id"}, "1"),
    (record(None, {"id": b'"1"', "spring_json_header_types": b"{}"}), {"kind": "feed", "id_from": "header:id"}, "1"),
]

FRAMED = "begins with a schema registry's frame (schema 1234) and holds no JSON, so it is Avro or Protobuf"
DEAD: list[tuple[Record, Options, str, str, str]] = [
    (record(change("t"), key=None), CHANGES | {"id_from": "/id"}, "InvalidField", "op", "is 't', and names no row"),
    (record(change("u", ROW), key=KEY), CHANGES, "MissingField", "after", "let Debezium send whole rows"),
    (record(change("c", None, "{"), key=KEY), CHANGES, "NotJson", "after", "is text and is no JSON"),
    (record([1], key=KEY), CHANGES, "NotAnObject", "value", "send what Debezium writes"),
    (record(None, key=None), CHANGES, "MissingKey", "key", "produce records with a key"),
    (record(None, key=b"Struct{id=1}"), CHANGES, "NotJson", "key", "set key.converter to JsonConverter"),
    (record(None, key=write({"id": None})), CHANGES, "InvalidField", "key", "has a column without a value"),
    (record(None, key=b"{}"), CHANGES, "InvalidField", "key", "has a column without a value"),
    (record(None, key=KEY), BY_COLUMN, "MissingField", "id", "there is no '/n' in the value; take the id from the key"),
    (record(change("d", {"id": 1, "n": None}), key=KEY), BY_COLUMN, "MissingField", "id", "REPLICA IDENTITY FULL"),
    (record(change("u", ROW, ROW | {"n": 6}), key=KEY), BY_COLUMN, "InvalidField", "id", "was '5' and became '6'"),
    (
        record(change("d", ROW), key=KEY),
        {"kind": "feed", "id_from": "key"},
        "InvalidField",
        "value",
        "--format debezium",
    ),
    (
        record(change("d", ROW), key=KEY),
        {"kind": "feed", "id_from": "/after/id"},
        "InvalidField",
        "value",
        "is a delete",
    ),
    (
        record(change("c", None, ROW), key=KEY),
        {},
        "InvalidField",
        "value",
        "or start the bridge with --format debezium",
    ),
    (record(None, key=KEY), {"kind": "feed"}, "InvalidField", "key", "name the part with --id-from key:/PART"),
    (record(None, key=KEY), {"kind": "feed", "id_from": "/id"}, "InvalidField", "key", "is a JSON object"),
    (record(None, key=KEY), {}, "InvalidField", "key", "is a JSON object"),
    (record(1, key=b"x"), {"kind": "feed", "id_from": "key:/id"}, "NotJson", "key", "is no JSON"),
    (record(1, key=b"1"), {"kind": "feed", "id_from": "key:/id"}, "MissingField", "id", "there is no '/id' in the key"),
    (record(None, key=KEY), {"kind": "/k", "id_from": "key:/id"}, "MissingField", "kind", "or use --kind"),
    (record(FRAME + b"\x02\x06foo"), MAPPED, "NotJson", "value", FRAMED),
    (record(FRAME + b"\0\x0a\x03foo"), {}, "NotJson", "value", FRAMED),
    (record(FRAME + b"7"), MAPPED, "NotJson", "value", FRAMED),
    (record(FRAME), MAPPED, "NotJson", "value", FRAMED),
    (record(b"\0"), MAPPED, "NotJson", "value", "frame and holds no JSON"),
    (record(GLUE + b"\x02"), MAPPED, "NotJson", "value", "begins with the frame of AWS Glue"),
    (record(b"\x02\x06foo", {"__value_schema_id": GUID}), MAPPED, "NotJson", "value", "its header __value_schema_id"),
    (record(1, key=FRAME + b"\x06foo"), MAPPED, "NotJson", "key", FRAMED),
    (record(1, key=FRAME + b"7"), MAPPED, "NotJson", "key", FRAMED),
    (record(1, {"__key_schema_id": GUID}, b"\x06foo"), MAPPED, "NotJson", "key", "its header __key_schema_id"),
    (record(1, {"__key_schema_id": GUID}, b"7"), MAPPED, "NotJson", "key", "neither an object nor a string of JSON"),
    (record(1, SPRING | {"ce_specversion": b'"0.3"'}), {}, "CloudEventProblem", "ce_specversion", "is '0.3'"),
]


@pytest.mark.parametrize(("given_record", "options", "expected"), STARTS, ids=range(len(STARTS)))
def test_what_producers_write_in_their_own_ways_starts_what_they_mean(
    given_record: Record, options: Options, expected: dict[str, Any]
) -> None:
    """Rows of tables, JSON in frames, and events with quoted headers become the message that was meant."""
    assert start(given_record, **options) == expected


@pytest.mark.parametrize(("given_record", "options", "message_id"), STOPS, ids=range(len(STOPS)))
def test_a_deleted_row_stops_the_message_that_the_row_started(
    given_record: Record, options: Options, message_id: str
) -> None:
    """So does the tombstone after it, whichever of the two comes."""
    expected: Delivery = stop("feed", message_id)

    assert decode(given_record, **options) == expected


@pytest.mark.parametrize(("given_record", "options", "error_class", "field", "phrase"), DEAD, ids=range(len(DEAD)))
def test_what_can_not_be_meant_for_sure_is_dead_and_says_why(
    given_record: Record, options: Options, error_class: str, field: str, phrase: str
) -> None:
    """No guess loses a message or starts another one: the sentence names the part, its flaw and the next step."""
    error = refuse(given_record, **options)

    assert (error.error_class, error.field) == (error_class, field)
    assert phrase in error.reason
    assert "; " in error.reason


def test_quotes_do_not_hide_a_trace() -> None:
    """What Spring has put into quotes is read everywhere."""
    headers = {"traceparent": b'"%s"' % TRACEPARENT, "correlation_id": b'"c"', "spring_json_header_types": b"{}"}
    asked = decode(record({"kind": "feed", "id": "a"}, headers))

    assert asked.trace == {"traceparent": TRACEPARENT.decode()}
    assert asked.envelope is not None
    assert asked.envelope.correlation_id == "c"


@pytest.mark.parametrize("kind", [None, "/what"])
def test_changes_need_a_kind_that_a_tombstone_can_tell(kind: str | None) -> None:
    """A row that is gone names none."""
    with pytest.raises(
        InvalidSetting, match=r"^--kind: has to be told with --format debezium, also for records without"
    ):
        FormatOptions.of_changes(kind=kind)
