"""What each record of a topic asks for."""

import base64
from typing import Any

import pytest

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
    start,
    stop,
)

STARTS: list[tuple[Record, Options, dict[str, Any]]] = [
    (record({"kind": "feed", "id": "a"}), {}, {"kind": "feed", "id": "a", "lane": "short"}),
    (record({"kind": "feed", "id": "a"}, key=None), {}, {"kind": "feed", "id": "a", "lane": "short"}),
    (
        record({"kind": None, "id": "a", "tenant": None, "correlation_id": None}, {"correlation_id": b"c"}, key=None),
        {"kind": "feed"},
        {"kind": "feed", "id": "a", "lane": "short", "correlation_id": "c"},
    ),
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


def test_a_record_names_its_partition() -> None:
    """Revisions carry where they come from."""
    assert record(1).source == "orders/3"
