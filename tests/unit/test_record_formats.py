"""What each record of a topic asks for, and why a dead one is dead."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidEnvelope, InvalidSetting
from shared.messages.envelope import EnvelopeRules, parse_envelope
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.record import ERROR_CLASSES, DeadRecord, Record
from starter.starting.delivery import Delivery

RULES = EnvelopeRules({"feed": "short", "report": "long"}, payload_max_bytes=512)
TRACEPARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STRUCTURED = ("content-type", b"application/cloudevents+json; charset=UTF-8")
BINARY = {"ce_specversion": b"1.0", "ce_id": b"e-1", "ce_source": b"/shop", "ce_type": b"feed"}
EVENT = {"specversion": "1.0", "id": "e-1", "source": "/shop", "type": "feed"}
Options = dict[str, Any]
Pairs = tuple[tuple[str, bytes | None], ...]


def write(value: Any) -> bytes:
    """Write JSON, or what Python takes for it."""
    return json.dumps(value).encode()


def record(value: Any, headers: Pairs | dict[str, bytes] = (), key: bytes | None = b"k-1") -> Record:
    """Make a record; what is no bytes and not None is written as JSON."""
    raw = value if value is None or isinstance(value, bytes) else write(value)
    pairs = tuple(headers.items()) if isinstance(headers, dict) else headers
    return Record("orders", 3, 17, 1_795_291_200_000, key, raw, pairs)


def decode(given_record: Record, **options: Any) -> Delivery:
    """Read one record with options as they are typed."""
    return Formats(FormatOptions.read(**options), RULES).decode(given_record)


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


STARTS: list[tuple[Record, Options, dict[str, Any]]] = [
    (record({"kind": "feed", "id": "a"}), {}, {"kind": "feed", "id": "a", "lane": "short"}),
    (record({"kind": "feed", "id": "a"}, key=None), {}, {"kind": "feed", "id": "a", "lane": "short"}),
    (
        record(
            {
                "schema_version": 1,
                "kind": "report",
                "id": "a",
                "lane": "medium",
                "scheduled_at": "2026-11-21T20:00:00+01:00",
                "tolerance_seconds": 60,
                "priority": 1,
                "tenant": "t",
                "payload": [1],
                "correlation_id": "c",
                "idempotency_key": "i",
            }
        ),
        {},
        {
            "kind": "report",
            "id": "a",
            "lane": "medium",
            "scheduled_at": "2026-11-21T19:00:00Z",
            "tolerance_seconds": 60.0,
            "priority": 1,
            "tenant": "t",
            "payload": [1],
            "correlation_id": "c",
            "idempotency_key": "i",
        },
    ),
    (record({"id": "a"}), {"kind": "feed"}, {"kind": "feed", "id": "a", "lane": "short"}),
    (record({"kind": "feed", "id": "a"}), {"kind": "feed"}, {"kind": "feed", "id": "a", "lane": "short"}),
    (
        record({"id": "a"}, {"what": b"report"}),
        {"kind": "header:what"},
        {"kind": "report", "id": "a", "lane": "long"},
    ),
    (
        record({"n": 1}),
        {"kind": "feed", "id_from": "key"},
        {"kind": "feed", "id": "k-1", "lane": "short", "payload": {"n": 1}},
    ),
    (
        record([1, "two"]),
        {"kind": "feed", "id_from": "key"},
        {"kind": "feed", "id": "k-1", "lane": "short", "payload": [1, "two"]},
    ),
    (
        record(7, {"order-id": "ö%20".encode()}),
        {"kind": "feed", "id_from": "header:order-id"},
        {"kind": "feed", "id": "ö%20", "lane": "short", "payload": 7},
    ),
    (
        record({"order": {"id": 42, "what": "report", "body": None}}),
        {"kind": "/order/what", "id_from": "/order/id", "payload_from": "/order/body"},
        {"kind": "report", "id": "42", "lane": "long"},
    ),
    (
        record({"a/b": [{"m~n": "x"}], "": {"": "y"}}),
        {"kind": "feed", "id_from": "/a~1b/0/m~0n", "payload_from": "//"},
        {"kind": "feed", "id": "x", "lane": "short", "payload": "y"},
    ),
    (
        record({"~1": "x"}),
        {"kind": "feed", "id_from": "/~01"},
        {"kind": "feed", "id": "x", "lane": "short", "payload": {"~1": "x"}},
    ),
    (
        record({"l": "long", "s": "2026-11-21T20:00:00Z", "p": 2, "t": 9}),
        {
            "kind": "feed",
            "id_from": "key",
            "lane_from": "/l",
            "scheduled_at_from": "/s",
            "priority_from": "/p",
            "tenant_from": "/t",
            "payload_from": "/p",
        },
        {
            "kind": "feed",
            "id": "k-1",
            "lane": "long",
            "scheduled_at": "2026-11-21T20:00:00Z",
            "priority": 2,
            "tenant": "9",
            "payload": 2,
        },
    ),
    (
        record(b"0", {"l": b"long", "s": b"2026-11-21T20:00:00Z", "p": b"2", "t": "ü".encode(), "b": b'{"n": [1]}'}),
        {
            "kind": "feed",
            "id_from": "key",
            "lane_from": "header:l",
            "scheduled_at_from": "header:s",
            "priority_from": "header:p",
            "tenant_from": "header:t",
            "payload_from": "header:b",
        },
        {
            "kind": "feed",
            "id": "k-1",
            "lane": "long",
            "scheduled_at": "2026-11-21T20:00:00Z",
            "priority": 2,
            "tenant": "ü",
            "payload": {"n": [1]},
        },
    ),
    (
        record({"p": None}, (("l", None),)),
        {"kind": "feed", "id_from": "key", "lane_from": "header:l", "priority_from": "/p", "tenant_from": "/t/0"},
        {"kind": "feed", "id": "k-1", "lane": "short", "payload": {"p": None}},
    ),
    (
        record({"n": 1}, BINARY),
        {},
        {"kind": "feed", "id": "e-1", "lane": "short", "payload": {"n": 1}},
    ),
    (
        record({"n": 1}, BINARY | {"ce_subject": "ä%41".encode(), "ce_correlationid": b"c", "ce_time": b"\xff"}),
        {},
        {"kind": "feed", "id": "ä%41", "lane": "short", "payload": {"n": 1}, "correlation_id": "c"},
    ),
    (record(b"", BINARY), {}, {"kind": "feed", "id": "e-1", "lane": "short"}),
    (
        record({"n": 1}, BINARY | {"content-type": b"Application/Vnd.shop+JSON; charset=utf-8"}),
        {},
        {"kind": "feed", "id": "e-1", "lane": "short", "payload": {"n": 1}},
    ),
    (
        record({"n": 1}, BINARY | {"ce_type": b"com.example.Order", "ce_subject": b"s"}),
        {"kind": "report", "id_from": "header:ce_id"},
        {"kind": "report", "id": "e-1", "lane": "long", "payload": {"n": 1}},
    ),
    (
        record({"n": {"id": "x"}, "p": 5}, BINARY),
        {"id_from": "/n/id", "priority_from": "/p", "payload_from": "/n"},
        {"kind": "feed", "id": "x", "lane": "short", "priority": 5, "payload": {"id": "x"}},
    ),
    (
        record(EVENT | {"data": {"n": 1}, "time": "never", "subject": None}, (STRUCTURED,)),
        {},
        {"kind": "feed", "id": "e-1", "lane": "short", "payload": {"n": 1}},
    ),
    (
        record(EVENT | {"subject": "s", "data": "<a/>", "datacontenttype": "application/xml"}, (STRUCTURED,)),
        {},
        {"kind": "feed", "id": "s", "lane": "short", "payload": "<a/>"},
    ),
    (
        record(EVENT | {"subject": "s", "correlationid": "c"}, (("content-type", b"APPLICATION/CloudEvents"),)),
        {"id_from": "header:ce_id"},
        {"kind": "feed", "id": "e-1", "lane": "short", "correlation_id": "c"},
    ),
    (
        record(EVENT | {"shard": 12, "data_base64": base64.b64encode(b'["\xc3\xb6"]').decode()}, (STRUCTURED,)),
        {"id_from": "header:ce_shard"},
        {"kind": "feed", "id": "12", "lane": "short", "payload": ["ö"]},
    ),
    (
        record(EVENT | {"data": 1}, (STRUCTURED, *BINARY.items())),
        {},
        {"kind": "feed", "id": "e-1", "lane": "short", "payload": 1},
    ),
    (
        record({"kind": "feed", "id": "a"}, {"content-type": b"\xff"}),
        {},
        {"kind": "feed", "id": "a", "lane": "short"},
    ),
]

STOPS: list[tuple[Record, Options, Delivery]] = [
    (record(None, key=b"feed:42"), {}, stop("feed", "42")),
    (record(None, key=b"feed:a:b"), {}, stop("feed", "a:b")),
    (record(None, key=b"42"), {"kind": "feed"}, stop("feed", "42")),
    (record(None, key=b"feed:42"), {"kind": "feed"}, stop("feed", "feed:42")),
    (record(None, key=b"feed:42"), {"kind": "feed", "id_from": "key"}, stop("feed", "feed:42")),
    (record(None, key=b"feed:42"), {"kind": "/what", "id_from": "key"}, stop("feed", "feed:42")),
    (record(None, key=b"feed:42"), {"kind": "/what", "id_from": "/id"}, stop("feed", "42")),
    (record(None, key=b"42"), {"kind": "feed", "id_from": "/id"}, stop("feed", "42")),
    (record(None, {"id": b"7"}, None), {"kind": "feed", "id_from": "header:id"}, stop("feed", "7")),
    (record(None, {"id": b"7"}, b"feed:42"), {"id_from": "header:id"}, stop("feed", "7")),
    (record(None, {"kind": b"report"}, b"42"), {"kind": "header:kind"}, stop("report", "42")),
    (
        record(None, BINARY | {"ce_subject": b"s"}),
        {"kind": "header:ce_type", "id_from": "header:ce_subject"},
        stop("feed", "s"),
    ),
]

MAPPED: Options = {"kind": "feed", "id_from": "key"}
DEAD: list[tuple[Record, Options, str, str, str]] = [
    (record(b""), {}, "NotJson", "value", "is no JSON (expecting value at character 1)"),
    (record(b"{"), {}, "NotJson", "value", "is no JSON"),
    (record(b"[" * 100_000), {}, "NotJson", "value", "is nested deeper than 64 levels"),
    (record(b"NaN"), MAPPED, "NotJson", "value", "holds NaN, which JSON does not know"),
    (record(b"9" * 4301), MAPPED, "NotJson", "value", "more than 4300 digits"),
    (record(1, {"b": b"text"}), MAPPED | {"payload_from": "header:b"}, "NotJson", "payload", "is no JSON"),
    (record(b"\xff"), {}, "NotUtf8", "value", "is not UTF-8 text (byte 1)"),
    (record(1, key=b"a\xff"), MAPPED, "NotUtf8", "key", "is not UTF-8 text (byte 2); send UTF-8"),
    (record(None, key=b"\xff"), {}, "NotUtf8", "key", "is not UTF-8 text (byte 1)"),
    (
        record(1, {"id": b"\xff"}),
        {"kind": "feed", "id_from": "header:id"},
        "NotUtf8",
        "header id",
        "is not UTF-8 text",
    ),
    (record(1, BINARY | {"ce_subject": b"\xff"}), {}, "NotUtf8", "ce_subject", "is not UTF-8 text"),
    (
        record({"kind": "feed", "id": "a"}, {"correlation_id": b"\xff"}),
        {},
        "NotUtf8",
        "correlation_id",
        "is not UTF-8 text",
    ),
    (record([]), {}, "NotAnObject", "value", "send an envelope, or map it with --id-from"),
    (record(b"null"), {"kind": "feed"}, "NotAnObject", "value", "is no JSON object"),
    (record([EVENT], (STRUCTURED,)), {}, "NotAnObject", "value", "is no JSON object; send one CloudEvent"),
    (record(b"x" * 1_000_001), {}, "TooLarge", "record", "is 1000004 bytes with key and headers"),
    (record(1, {"h": b"x" * 999_999}), {}, "TooLarge", "record", "the limit is 1000000"),
    (record(None, key=b"x" * 1_000_001), {}, "TooLarge", "record", "is 1000001 bytes"),
    (record(b'"' + b"x" * 1_000_000), {}, "TooLarge", "record", "the limit is 1000000"),
    (record("x" * 600), MAPPED, "TooLarge", "payload", "is 602 bytes of JSON, the limit is 512"),
    (record({"kind": "x", "id": "a"}), {}, "UnknownKind", "kind", "no handler for 'x' is loaded"),
    (record(None, key=b"x:1"), {}, "UnknownKind", "kind", "no handler for 'x' is loaded"),
    (
        record(1, BINARY | {"ce_type": b"com.example.x"}),
        {},
        "UnknownKind",
        "kind",
        (
            "as the event's type no handler for 'com.example.x' is loaded; "
            "loaded: feed, report; or start the bridge with --kind"
        ),
    ),
    (record({"schema_version": 2, "new": 1}), {}, "UnknownSchemaVersion", "schema_version", "reads schema_version 1"),
    (record({"schema_version": "1"}), {}, "UnknownSchemaVersion", "schema_version", "is '1'"),
    (record({"kind": "feed"}), {}, "MissingField", "id", "is missing"),
    (record({"id": "a"}), {}, "MissingField", "kind", "is missing"),
    (record({"n": 1}), {"id_from": "key"}, "MissingField", "kind", "is missing"),
    (record({"id": "a"}), {"kind": "header:k"}, "MissingField", "kind", "there is no header 'k'; send it"),
    (
        record({"n": 1}),
        {"kind": "feed", "id_from": "/n/id"},
        "MissingField",
        "id",
        "is missing: there is no '/n/id' in the value; send it",
    ),
    (record([1]), {"kind": "feed", "id_from": "/1"}, "MissingField", "id", "no '/1' in the value"),
    (record([1]), {"kind": "feed", "id_from": "/00"}, "MissingField", "id", "no '/00' in the value"),
    (record([1]), {"kind": "feed", "id_from": "/-"}, "MissingField", "id", "no '/-' in the value"),
    (record([1]), {"kind": "feed", "id_from": "/" + "9" * 5000}, "MissingField", "id", "in the value"),
    (record({"id": None}), {"kind": "feed", "id_from": "/id"}, "MissingField", "id", "no '/id'"),
    (record(1, (("id", None),)), {"kind": "feed", "id_from": "header:id"}, "MissingField", "id", "no header 'id'"),
    (record({}), MAPPED | {"payload_from": "/p"}, "MissingField", "payload", "no '/p' in the value"),
    (record(None, key=b"42"), {}, "MissingField", "kind", "give the tombstone a key like kind:id, or use --kind"),
    (record(None), {"kind": "feed", "id_from": "header:id"}, "MissingField", "id", "no header 'id'"),
    (record({"kind": "feed", "id": 7.5}), {}, "InvalidField", "id", "is 7.5, no whole number"),
    (record({"kind": "feed", "id": "a", "x": 1}), {}, "InvalidField", "x", "is not a field of the envelope"),
    (record({"kind": "report", "id": "a"}), {"kind": "feed"}, "InvalidField", "kind", "but --kind says 'feed'"),
    (record({"id": True}), {"kind": "feed", "id_from": "/id"}, "InvalidField", "id", "must be a string"),
    (record(1, key=b""), MAPPED, "InvalidField", "id", "is empty"),
    (record(None, key=b"feed:"), {}, "InvalidField", "id", "is empty"),
    (record(None, key=b":a"), {}, "InvalidField", "kind", "is ''"),
    (record({"p": "2"}), MAPPED | {"priority_from": "/p"}, "InvalidField", "priority", "is '2'"),
    (record(1, {"p": b"9"}), MAPPED | {"priority_from": "header:p"}, "InvalidField", "priority", "is '9'"),
    (record(1, {"correlation-id": b"c" * 201}), MAPPED, "InvalidField", "correlation_id", "is 201 bytes"),
    (
        record(1, BINARY | {"ce_type": b"com.example.Order"}),
        {},
        "InvalidField",
        "kind",
        "as the event's type is 'com.example.Order'; use lower-case letters",
    ),
    (record(EVENT | {"correlationid": 1}, (STRUCTURED,)), {}, "InvalidField", "correlation_id", "must be a string"),
    (record(1, key=None), MAPPED, "MissingKey", "key", "is null, but the id comes from it"),
    (record(None, key=None), {}, "MissingKey", "key", "is null"),
    (record(None, key=None), {"kind": "feed"}, "MissingKey", "key", "produce records with a key"),
    (record(1, BINARY, None), {"id_from": "key"}, "MissingKey", "key", "is null"),
    (record(1, BINARY | {"ce_specversion": b"0.3"}), {}, "CloudEventProblem", "ce_specversion", "is '0.3'"),
    (record(1, {"ce_specversion": b"1.0"}), {}, "CloudEventProblem", "ce_id", "is missing"),
    (record(1, BINARY | {"ce_source": b""}), {}, "CloudEventProblem", "ce_source", "string that is not empty"),
    (record(1, BINARY | {"ce_subject": b""}), {}, "CloudEventProblem", "ce_subject", "string that is not empty"),
    (
        record(1, BINARY | {"content-type": b"application/avro"}),
        {},
        "CloudEventProblem",
        "content-type",
        "is 'application/avro'; send data as application/json",
    ),
    (
        record(EVENT, {"content-type": b"application/cloudevents+avro"}),
        {},
        "CloudEventProblem",
        "content-type",
        "send events as application/cloudevents+json",
    ),
    (record({"data": 1}, (STRUCTURED,)), {}, "CloudEventProblem", "specversion", "is missing"),
    (record(EVENT | {"id": 7}, (STRUCTURED,)), {}, "CloudEventProblem", "id", "must be a string"),
    (
        record(EVENT | {"data": 1, "data_base64": "MQ=="}, (STRUCTURED,)),
        {},
        "CloudEventProblem",
        "data_base64",
        "stands beside data",
    ),
    (record(EVENT | {"data_base64": 1}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no string"),
    (record(EVENT | {"data_base64": "M"}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no Base64"),
    (record(EVENT | {"data_base64": "M!Q=="}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no Base64"),
    (record(EVENT | {"data_base64": "ö"}, (STRUCTURED,)), {}, "CloudEventProblem", "data_base64", "is no Base64"),
    (record(EVENT | {"data_base64": "ew=="}, (STRUCTURED,)), {}, "NotJson", "data_base64", "is no JSON"),
    (
        record(EVENT | {"data_base64": "MQ==", "datacontenttype": "image/png"}, (STRUCTURED,)),
        {},
        "CloudEventProblem",
        "datacontenttype",
        "is 'image/png'",
    ),
]

BAD_OPTIONS: list[tuple[Options, str]] = [
    ({"kind": "Feed"}, "--kind: is 'Feed'; use lower-case letters"),
    ({"kind": ""}, "--kind: is ''"),
    ({"kind": "unheard-of"}, "--kind: no handler for 'unheard-of' is loaded; loaded: feed, report"),
    ({"kind": "header:"}, "--kind: names the header ''; write header:NAME"),
    ({"kind": "header: x"}, "--kind: names the header ' x'"),
    ({"id_from": ""}, "--id-from: is ''; write key, header:NAME or a JSON pointer"),
    ({"id_from": "order.id"}, "--id-from: is 'order.id'; write key, header:NAME or a JSON pointer"),
    ({"id_from": "/a~2"}, "--id-from: has a '~' at position 3 that escapes nothing; write ~0"),
    ({"id_from": "/a~"}, "--id-from: has a '~' at position 3"),
    ({"id_from": "header:a\nb"}, "--id-from: names the header 'a\\nb'"),
    (MAPPED | {"lane_from": "key"}, "--lane-from: is 'key'; write header:NAME or a JSON pointer"),
    (MAPPED | {"scheduled_at_from": "at"}, "--scheduled-at-from: is 'at'"),
    (MAPPED | {"priority_from": "2"}, "--priority-from: is '2'"),
    (MAPPED | {"tenant_from": "acme"}, "--tenant-from: is 'acme'"),
    (MAPPED | {"payload_from": ""}, "--payload-from: is ''"),
    ({"kind": "feed", "payload_from": "/p"}, "--payload-from: maps records whose id comes from somewhere, too; add"),
]

TRACES: list[tuple[bytes | None, bytes | None, tuple[str, str]]] = [
    (TRACEPARENT, None, (TRACEPARENT.decode(), "")),
    (TRACEPARENT, b"a=1,b=2", (TRACEPARENT.decode(), "a=1,b=2")),
    (TRACEPARENT, b"a=\xff", (TRACEPARENT.decode(), "")),
    (TRACEPARENT, b"a=" + b"x" * 511, (TRACEPARENT.decode(), "")),
    (b"01" + TRACEPARENT[2:] + b"-more", None, (f"01{TRACEPARENT.decode()[2:]}-more", "")),
    (None, b"a=1", ("", "")),
    (b"", b"a=1", ("", "")),
    (TRACEPARENT + b"-more", b"a=1", ("", "")),
    (TRACEPARENT + b"\n", b"a=1", ("", "")),
    (TRACEPARENT.upper(), b"a=1", ("", "")),
    (b"ff" + TRACEPARENT[2:], b"a=1", ("", "")),
    (b"01" + TRACEPARENT[2:] + b"-" + b"x" * 200, b"a=1", ("", "")),
    (b"00-" + b"0" * 32 + TRACEPARENT[35:], b"a=1", ("", "")),
    (TRACEPARENT[:36] + b"0" * 16 + b"-01", b"a=1", ("", "")),
    (b"\xff" * 55, b"a=1", ("", "")),
]


@pytest.mark.parametrize(("given_record", "options", "expected"), STARTS, ids=range(len(STARTS)))
def test_a_record_starts_the_message_it_describes(
    given_record: Record, options: Options, expected: dict[str, Any]
) -> None:
    """Envelopes, mapped JSON and both modes of CloudEvents become the envelope that was meant."""
    assert start(given_record, **options) == expected


@pytest.mark.parametrize(("given_record", "options", "expected"), STOPS, ids=range(len(STOPS)))
def test_a_record_without_a_value_stops_the_message_it_names(
    given_record: Record, options: Options, expected: Delivery
) -> None:
    """The key names it, or what the options point to."""
    assert decode(given_record, **options) == expected


@pytest.mark.parametrize(("options", "value"), [(MAPPED, {"n": 1}), ({"kind": "feed", "id_from": "header:id"}, 1)])
@pytest.mark.parametrize("name", ["42", "feed:42", "a b", "ö"])
def test_a_tombstone_names_the_message_that_a_value_under_the_same_key_starts(
    options: Options, value: Any, name: str
) -> None:
    """Whatever the key looks like, the start and the stop agree."""
    headers = {"id": name.encode()}
    begun = start(record(value, headers, name.encode()), **options)

    assert decode(record(None, headers, name.encode()), **options) == stop(begun["kind"], begun["id"])


@pytest.mark.parametrize(("given_record", "options", "error_class", "field", "phrase"), DEAD, ids=range(len(DEAD)))
def test_a_dead_record_says_why(
    given_record: Record, options: Options, error_class: str, field: str, phrase: str
) -> None:
    """Programs get a class to select by, people one sentence that names the field."""
    error = refuse(given_record, **options)

    assert (error.error_class, error.field) == (error_class, field)
    assert phrase in error.reason
    assert str(error) == f"{field}: {error.reason}"
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize("value", [b"\xff", b"{", b"[]", b'{"id": "a"}', b'{"schema_version": 2}', b'{"kind": 1}'])
def test_a_dead_envelope_has_the_class_that_its_flaw_has_elsewhere(value: bytes) -> None:
    """What refuses a line of a file refuses a record, under the same name."""
    with pytest.raises(InvalidEnvelope) as caught:
        parse_envelope(value, RULES)

    assert caught.value.flaw == refuse(record(value)).error_class


def test_every_error_class_is_seen() -> None:
    """No class exists on paper only."""
    assert {row[2] for row in DEAD} == set(ERROR_CLASSES)


@pytest.mark.parametrize(("options", "sentence"), BAD_OPTIONS)
def test_a_bad_option_is_refused_before_any_record_is_read(options: Options, sentence: str) -> None:
    """The sentence names the option, its problem and what to write."""
    with pytest.raises(InvalidSetting) as caught:
        Formats(FormatOptions.read(**options), RULES)

    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(("traceparent", "tracestate", "expected"), TRACES, ids=range(len(TRACES)))
def test_a_trace_context_is_taken_over_when_it_is_one(
    traceparent: bytes | None, tracestate: bytes | None, expected: tuple[str, str]
) -> None:
    """A malformed one is dropped, the state with it, and the message starts all the same."""
    headers = (("traceparent", traceparent), ("tracestate", tracestate))
    asked = decode(record({"kind": "feed", "id": "a"}, headers))

    names = ("traceparent", "tracestate")
    assert asked.trace == {name: text for name, text in zip(names, expected, strict=True) if text}


@pytest.mark.parametrize(
    ("own", "headers", "expected"),
    [
        ({}, {"correlation_id": b"h"}, "h"),
        ({}, {"correlation-id": b"h"}, "h"),
        ({}, {"correlation-id": b"second", "correlation_id": b"first"}, "first"),
        ({}, {"correlation_id": b"", "correlation-id": b"h"}, "h"),
        ({"correlation_id": ""}, {"correlation_id": b"h"}, "h"),
        ({"correlation_id": "own"}, {"correlation_id": b"h"}, "own"),
    ],
)
def test_the_senders_own_correlation_id_comes_before_a_header(
    own: dict[str, str], headers: dict[str, bytes], expected: str
) -> None:
    """A header fills in what the envelope or the event leaves out."""
    event = EVENT | {name.replace("_", ""): value for name, value in own.items() if value}
    envelopes = [
        start(record({"kind": "feed", "id": "a", **own}, headers)),
        start(record(event, (STRUCTURED, *headers.items()))),
    ]

    assert [envelope["correlation_id"] for envelope in envelopes] == [expected, expected]


def test_of_two_headers_with_one_name_the_last_counts() -> None:
    """Kafka allows repeats; whoever adds one means to replace."""
    assert start(record(1, (("id", b"old"), ("id", b"new"))), kind="feed", id_from="header:id")["id"] == "new"


def test_the_largest_record_is_read() -> None:
    """The limit counts value, key, and names and values of headers, and is reachable."""
    most = b'"' + b"x" * (1_000_000 - 7) + b'"'

    assert refuse(record(most, {"h": b"x"}, b"k-1"), **MAPPED).field == "payload"  # and not the record
    assert refuse(record(most, {"h": b"xx"}, b"k-1"), **MAPPED).field == "record"


def test_a_record_names_its_partition() -> None:
    """Revisions carry where they come from."""
    assert record(1).source == "orders/3"


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["kind", "id", "data", "data_base64", "subject", "specversion", "type", "source", "correlation_id", "priority"]
OBJECTS = st.dictionaries(
    st.sampled_from(NAMES) | st.text(max_size=3), ANY_JSON | st.sampled_from(["1.0", "feed", "e"])
)
VALUES = st.none() | st.binary() | (ANY_JSON | OBJECTS).map(write)
TEXTS = (
    st.none() | st.binary(max_size=20) | st.sampled_from([b"1.0", b"feed", b"feed:1", b"e", STRUCTURED[1], TRACEPARENT])
)
HEADERS = st.lists(
    st.tuples(st.sampled_from([*BINARY, "content-type", "ce_subject", "traceparent", "correlation_id", "h"]), TEXTS),
    max_size=6,
)
OPTIONS = st.sampled_from(
    [
        {},
        {"kind": "feed"},
        {"kind": "/kind"},
        {"kind": "header:h"},
        {"id_from": "key"},
        {"kind": "feed", "id_from": "header:ce_id", "payload_from": "header:h"},
        {"kind": "/kind", "id_from": "/id", "payload_from": "/data/0", "tenant_from": "/id"},
        {"kind": "feed", "id_from": "/id", "priority_from": "/priority", "lane_from": "header:h"},
    ]
)


@settings(database=None, deadline=None)
@given(VALUES, TEXTS, HEADERS, st.booleans(), OPTIONS)
def test_any_record_is_read_or_dead(
    value: bytes | None,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    is_event: bool,  # noqa: FBT001 — hypothesis draws it
    options: Options,
) -> None:
    """No bytes lead to any other error, and the reason is one line that UTF-8 can carry."""
    pairs = (*headers, *(BINARY.items() if is_event else ()))
    try:
        asked = decode(record(value, pairs, key), **options)
    except DeadRecord as exc:
        error_class, sentence = exc.error_class, str(exc)
    else:
        assert (asked.envelope is None) == (value is None)
        return
    assert error_class in ERROR_CLASSES
    assert sentence.encode()
    assert len(sentence.splitlines()) == 1


IDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@settings(database=None, deadline=None)
@given(IDS, PAYLOADS, st.integers(1, 5), IDS)
def test_every_format_carries_the_same_message(message_id: str, payload: Any, priority: int, event_id: str) -> None:
    """What an envelope, a mapped record and both modes of a CloudEvent say in their own ways is one and the same."""
    envelope = {"kind": "feed", "id": message_id, "payload": payload}
    subject = message_id.encode()
    event = EVENT | {"id": event_id, "subject": message_id, "data": payload}
    expected = stop("feed", message_id)._replace(envelope=parse_envelope(envelope, RULES))
    urgent = expected._replace(envelope=parse_envelope(envelope | {"priority": priority}, RULES))
    wrapped = {"p": priority, "i": message_id, "body": payload}

    assert decode(record(envelope)) == expected
    assert decode(record(write(payload), (), subject), **MAPPED) == expected
    assert decode(record(write(payload), BINARY | {"ce_id": event_id.encode(), "ce_subject": subject})) == expected
    assert decode(record(event, (STRUCTURED,))) == expected
    assert decode(record(wrapped), kind="feed", id_from="/i", priority_from="/p", payload_from="/body") == urgent
