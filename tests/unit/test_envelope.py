"""What the edge lets in and what it refuses, with the sentence a sender gets."""

import json
from collections import UserDict
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import InvalidEnvelope
from shared.lanes import LANES
from shared.messages.envelope import (
    ID_MAX_BYTES,
    KIND_MAX_BYTES,
    TOLERANCE_MAX,
    Envelope,
    EnvelopeRules,
    parse_envelope,
    parse_envelope_fast,
)
from shared.messages.timespan import HORIZON

RULES = EnvelopeRules({"feed": "short", "report": "long"}, payload_max_bytes=128)
GOOD: dict[str, Any] = {"kind": "feed", "id": "a"}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


def nest(depth: int) -> Any:
    """Build a list inside a list inside … with that many levels."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"schema_version": 2}, "schema_version", "is 2; this version of dormice reads schema_version 1"),
    ({"schema_version": True}, "schema_version", "is true/false"),
    ({"schema_version": "1"}, "schema_version", "is '1'"),
    ({"schema_version": nest(900)}, "schema_version", "is a list"),
    ({"kind": None}, "kind", "must be a string, not null"),
    ({"kind": 7}, "kind", "must be a string, not a number"),
    ({"kind": ["feed"]}, "kind", "must be a string, not a list"),
    ({"kind": ""}, "kind", "is ''; use lower-case letters"),
    ({"kind": "Feed"}, "kind", "use lower-case letters"),
    ({"kind": "feed:er"}, "kind", "use lower-case letters"),
    ({"kind": ".feed"}, "kind", "letter or digit first"),
    ({"kind": "f\u00e9ed"}, "kind", "use lower-case letters"),
    ({"kind": "f" * 51}, "kind", "is 51 bytes of UTF-8, the limit is 50"),
    ({"kind": "feed\n"}, "kind", "control character '\\n' at position 5"),
    ({"kind": "unheard-of"}, "kind", "no handler for 'unheard-of' is loaded; loaded: feed, report"),
    ({"id": None}, "id", "must be a string, not null"),
    ({"id": 12.0}, "id", "is 12.0, no whole number; put it in quotes, as it is to be written"),
    ({"id": True}, "id", "must be a string, not true/false; put it in quotes"),
    ({"id": {"a": 1}}, "id", "must be a string, not an object"),
    ({"id": ""}, "id", "is empty"),
    ({"id": "."}, "id", "is '.', which in a URL is a step in the path; give another id"),
    ({"id": ".."}, "id", "is '..', which in a URL is a step in the path; give another id"),
    ({"id": "x" * 201}, "id", "is 201 bytes of UTF-8, the limit is 200"),
    ({"id": "\u20ac" * 67}, "id", "is 201 bytes of UTF-8, the limit is 200"),
    ({"id": "a\tb"}, "id", "control character '\\t' at position 2"),
    ({"id": "a\x85"}, "id", "control character '\\x85' at position 2"),
    ({"id": "\ud800"}, "id", "lone surrogate"),
    ({"lane": "express"}, "lane", "is 'express'; use one of short, medium, long"),
    ({"lane": ""}, "lane", "is ''"),
    ({"lane": ["short"]}, "lane", "is a list; use one of"),
    ({"lane": {}}, "lane", "is an object; use one of"),
    ({"scheduled_at": True}, "scheduled_at", "must be a string in RFC 3339 form, not true/false"),
    ({"scheduled_at": 3600}, "scheduled_at", "is 3600, whose unit is not clear; give seconds (ten digits)"),
    ({"scheduled_at": "tomorrow"}, "scheduled_at", "is 'tomorrow', not RFC 3339 with an offset"),
    (
        {"scheduled_at": "2026-11-21T20:00:00"},
        "scheduled_at",
        "which has no offset; write it like 2026",
    ),
    ({"scheduled_at": datetime(2026, 11, 21)}, "scheduled_at", "has no offset"),  # noqa: DTZ001 — naive is the point
    ({"scheduled_at": "2026-11-21"}, "scheduled_at", "which has no offset; write it like"),
    ({"scheduled_at": "2026-11-21T20:00:00 CET"}, "scheduled_at", "not RFC 3339 with an offset"),
    ({"scheduled_at": "2026-11-21T20:00:00+01:00[Europe/Paris]"}, "scheduled_at", "not RFC 3339 with an offset"),
    ({"scheduled_at": "2026-02-30T20:00:00Z"}, "scheduled_at", "which no calendar has"),
    ({"scheduled_at": "2026-11-21T20:61:00Z"}, "scheduled_at", "which no calendar has"),
    ({"scheduled_at": "0001-01-01T00:00:00+14:00"}, "scheduled_at", "outside the calendar"),
    ({"scheduled_at": "9999-01-01T00:00:00Z"}, "scheduled_at", "more than ten years ahead"),
    ({"tolerance_seconds": -0.001}, "tolerance_seconds", "is -0.001; give seconds between 0 and 2592000"),
    ({"tolerance_seconds": 2592001}, "tolerance_seconds", "is 2592001; give seconds between 0 and 2592000"),
    ({"tolerance_seconds": float("nan")}, "tolerance_seconds", "is nan"),
    ({"tolerance_seconds": 10**5000}, "tolerance_seconds", "is a number far too large"),
    ({"tolerance_seconds": "60"}, "tolerance_seconds", "must be a number of seconds, not a string"),
    ({"tolerance_seconds": True}, "tolerance_seconds", "must be a number of seconds, not true/false"),
    ({"priority": 0}, "priority", "is 0; give a whole number from 1 (first) to 5 (last)"),
    ({"priority": 6}, "priority", "is 6"),
    ({"priority": 2.0}, "priority", "is 2.0"),
    ({"priority": "3"}, "priority", "is '3'"),
    ({"priority": True}, "priority", "is true/false"),
    ({"tenant": "t" * 65}, "tenant", "is 65 bytes of UTF-8, the limit is 64"),
    ({"tenant": "\x7f"}, "tenant", "control character '\\x7f' at position 1"),
    ({"correlation_id": 4.5}, "correlation_id", "must be a string, not a number"),
    ({"correlation_id": "c" * 201}, "correlation_id", "is 201 bytes of UTF-8, the limit is 200"),
    ({"idempotency_key": []}, "idempotency_key", "must be a string, not a list"),
    ({"payload": "x" * 127}, "payload", "is 129 bytes of JSON, the limit is 128"),
    ({"payload": float("inf")}, "payload", "holds inf, which JSON does not know"),
    ({"payload": {"a": [float("nan")]}}, "payload", "holds nan, which JSON does not know"),
    ({"payload": "\udfff"}, "payload", "lone surrogate"),
    ({"payload": nest(65)}, "payload", "is nested deeper than 64 levels"),
    ({"payload": 10**4300}, "payload", "holds a whole number of more than 4300 digits"),
    ({"payload": {1: 2}}, "payload", "has a key that is a int, not a string"),
    ({"payload": b"raw"}, "payload", "holds a bytes, which JSON does not know"),
    ({"due_at": None}, "due_at", "is not a field of the envelope; use schema_version, kind, id"),
    ({"ID": "a"}, "ID", "is not a field of the envelope"),
    ({"x\ny\u2028": 1}, "x\\ny\\u2028", "is not a field of the envelope"),
]
BAD_TEXTS: list[tuple[str | bytes, str, str]] = [
    ("", "envelope", "is no JSON"),
    ("{", "envelope", "is no JSON (expecting property name"),
    ('{"kind":"feed","id":"a"', "envelope", "at character 24"),
    ('{"kind":"feed","id":"a"}x', "envelope", "is no JSON (extra data at character 25)"),
    ("{'kind':'feed'}", "envelope", "is no JSON"),
    ('{"id":"a\nb"}', "envelope", "is no JSON (invalid control character at character 9)"),
    ("null", "envelope", "is null; send one JSON object"),
    ("[]", "envelope", "is a list; send one JSON object"),
    ('"feed"', "envelope", "is a string; send one JSON object"),
    ("{}", "kind", "is missing; every message needs one"),
    ('{"kind":"feed"}', "id", "is missing"),
    ('{"kind":"feed","id":"a","payload":NaN}', "envelope", "holds NaN, which JSON does not know"),
    ('{"kind":"feed","id":"a","payload":-Infinity}', "envelope", "holds -Infinity"),
    ('{"kind":"feed","id":"a","payload":1e999}', "payload", "holds inf"),
    ('{"kind":"feed","id":"a","payload":%s}' % ("9" * 4301), "envelope", "more than 4300 digits"),
    ("[" * 100_000, "envelope", "is nested deeper than 64 levels"),
    (b'{"kind":"feed","id":"\xff"}', "envelope", "is not UTF-8 text (byte 22)"),
    (b'{"kind":"feed","id":"\xed\xa0\x80"}', "envelope", "is not UTF-8 text (byte 22)"),
    (json.dumps(GOOD).encode("utf-16"), "envelope", "is not UTF-8 text (byte 1)"),
    (b"\x00" * 8, "envelope", "is no JSON"),
]
GOOD_FIELDS: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "payload", None),
    ({"payload": None}, "payload", None),
    ({"payload": "x" * 126}, "payload", "x" * 126),
    ({"payload": "\u20ac" * 42}, "payload", "\u20ac" * 42),
    ({"payload": nest(64)}, "payload", nest(64)),
    ({"payload": {"a": [1, 2.5, None, True, "\u00e4"]}}, "payload", {"a": [1, 2.5, None, True, "\u00e4"]}),
    ({"id": "x" * 200}, "id", "x" * 200),
    ({"id": "\u20ac" * 66 + "xx"}, "id", "\u20ac" * 66 + "xx"),
    ({"id": "\U0001f42d" * 50}, "id", "\U0001f42d" * 50),
    ({"id": "a:b:c d"}, "id", "a:b:c d"),
    ({"id": "..."}, "id", "..."),
    ({"id": "./a"}, "id", "./a"),
    *(({name: 42}, name, "42") for name in ("id", "tenant", "correlation_id", "idempotency_key")),
    ({"schema_version": 1}, "schema_version", 1),
    ({"lane": None}, "lane", "short"),
    ({"lane": "medium"}, "lane", "medium"),
    ({"kind": "report"}, "lane", "long"),
    ({"scheduled_at": None}, "scheduled_at", None),
    ({"scheduled_at": "2026-11-21T20:00:00Z"}, "scheduled_at", datetime(2026, 11, 21, 20, tzinfo=UTC)),
    ({"scheduled_at": "2026-11-21t20:00:00z"}, "scheduled_at", datetime(2026, 11, 21, 20, tzinfo=UTC)),
    ({"scheduled_at": "2026-11-21 20:00:00+05:30"}, "scheduled_at", datetime(2026, 11, 21, 14, 30, tzinfo=UTC)),
    ({"scheduled_at": "2026-11-21T20:00:00-23:59"}, "scheduled_at", datetime(2026, 11, 22, 19, 59, tzinfo=UTC)),
    ({"scheduled_at": "2026-11-21T20:00:00.5Z"}, "scheduled_at", datetime(2026, 11, 21, 20, 0, 0, 500_000, tzinfo=UTC)),
    (
        {"scheduled_at": "2026-11-21T20:00:00.1234567899Z"},
        "scheduled_at",
        datetime(2026, 11, 21, 20, 0, 0, 123_456, tzinfo=UTC),
    ),
    ({"scheduled_at": "1999-12-31T23:59:59Z"}, "scheduled_at", datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ({"tolerance_seconds": 0}, "tolerance_seconds", 0.0),
    ({"tolerance_seconds": TOLERANCE_MAX.total_seconds()}, "tolerance_seconds", 2_592_000.0),
    ({"priority": 1}, "priority", 1),
    ({"priority": 5}, "priority", 5),
    ({"tenant": "\u20ac" * 21 + "x"}, "tenant", "\u20ac" * 21 + "x"),
    ({"correlation_id": "c" * 200}, "correlation_id", "c" * 200),
    ({"idempotency_key": "order-7"}, "idempotency_key", "order-7"),
]


def refuse(raw: Any, rules: EnvelopeRules = RULES) -> InvalidEnvelope:
    """Give the error that an envelope is refused with."""
    with pytest.raises(InvalidEnvelope) as caught:
        parse_envelope(raw, rules)
    return caught.value


@pytest.mark.parametrize(("change", "field", "phrase"), BAD_FIELDS)
def test_a_bad_field_is_refused_in_one_sentence_that_names_it(change: dict[str, Any], field: str, phrase: str) -> None:
    """The sender learns which field is wrong, what is wrong and what to write, in one line."""
    error = refuse({**GOOD, **change})

    assert error.field == field
    assert phrase in error.problem
    assert str(error) == f"{field}: {error.problem}"
    assert len(str(error).splitlines()) == 1
    assert len(str(error)) < 300


@pytest.mark.parametrize(("text", "field", "phrase"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_text_that_is_no_envelope_is_refused_in_one_sentence(text: str | bytes, field: str, phrase: str) -> None:
    """Whatever bytes a topic holds, the answer is one line under a field's name."""
    error = refuse(text)

    assert error.field == field
    assert phrase in error.problem
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(("change", "field", "expected"), GOOD_FIELDS)
def test_a_good_field_is_taken_as_it_was_meant(change: dict[str, Any], field: str, expected: Any) -> None:
    """Limits are reachable, moments arrive in UTC, and what was left out gets its default."""
    envelope = parse_envelope({**GOOD, **change}, RULES)

    assert getattr(envelope, field) == expected


def test_moments_arrive_in_utc() -> None:
    """Whatever offset the sender wrote, everything behind the edge reads one clock."""
    moment = parse_envelope({**GOOD, "scheduled_at": "2026-11-21T20:00:00+05:30"}, RULES).scheduled_at

    assert moment is not None
    assert moment.isoformat() == "2026-11-21T14:30:00+00:00"


def test_what_is_left_out_has_its_default() -> None:
    """Kind and id alone make a message: due now, on its handler's lane, with middle priority."""
    expected = Envelope(kind="feed", id="a", lane="short", scheduled_at=None, tolerance_seconds=0, priority=3)

    assert parse_envelope(GOOD, RULES) == expected


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps(GOOD),
        json.dumps(GOOD).encode(),
        "\ufeff" + json.dumps(GOOD),
        ("\ufeff" + json.dumps(GOOD)).encode(),
        MappingProxyType(GOOD),
        UserDict(GOOD),
    ],
)
def test_text_bytes_and_mappings_are_all_the_same_envelope(raw: Any) -> None:
    """A record may come as bytes, a line of a file or a parsed object, with or without a byte-order mark."""
    assert parse_envelope(raw, RULES) == parse_envelope(GOOD, RULES)


def test_the_horizon_is_ten_years() -> None:
    """A moment inside ten years is a plan, one beyond them a unit mistake."""
    edge = datetime.now(UTC) + HORIZON

    assert parse_envelope({**GOOD, "scheduled_at": edge - timedelta(minutes=5)}, RULES).scheduled_at is not None
    assert refuse({**GOOD, "scheduled_at": edge + timedelta(minutes=5)}).field == "scheduled_at"


def test_the_payload_limit_counts_bytes_of_compact_json() -> None:
    """The limit is a rule of the installation; blanks in the text do not count, multi-byte characters do."""
    text = '{"kind":"feed","id":"a","payload":{ "a" : "\u20ac" }}'
    enough, tight = (EnvelopeRules({"feed": "short"}, payload_max_bytes=size) for size in (11, 10))

    assert parse_envelope(text, enough).payload == {"a": "\u20ac"}
    assert "is 11 bytes of JSON, the limit is 10" in refuse(text, tight).problem


def test_the_first_bad_field_in_the_order_of_the_envelope_is_named() -> None:
    """With several mistakes the sentence names one, the same one every time."""
    assert refuse({"priority": 9, "kind": "feed", "id": "", "lane": "express"}).field == "id"


@pytest.mark.parametrize("name", [name for name, at in Envelope.model_fields.items() if not at.is_required()])
def test_null_is_absent_in_every_optional_field(name: str) -> None:
    """Most programs that write JSON have no other way to leave a field out; a bridge reads it so, and a signal too."""
    expected = parse_envelope(GOOD, RULES)

    assert parse_envelope({**GOOD, name: None}, RULES) == expected
    assert parse_envelope_fast({**GOOD, name: None}, RULES) == expected


def test_without_any_handler_the_sentence_says_so() -> None:
    """An installation without handlers refuses every kind and says that none is loaded."""
    assert refuse(GOOD, EnvelopeRules()).problem == "no handler for 'feed' is loaded; loaded: none at all"


def test_the_longest_workflow_id_fits_what_servers_keep() -> None:
    """Kind, colon and id together stay within 255 bytes, the width of a workflow id in SQL stores of Temporal."""
    kind = "k" * KIND_MAX_BYTES
    longest = parse_envelope({"kind": kind, "id": "i" * ID_MAX_BYTES}, EnvelopeRules({kind: "short"}))

    assert len(f"{longest.kind}:{longest.id}".encode()) <= 255


def parses_or_is_refused(raw: Any) -> bool:
    """Say whether an envelope came out; any error but InvalidEnvelope goes through and fails the test."""
    try:
        envelope = parse_envelope(raw, RULES)
    except InvalidEnvelope as exc:
        sentence = str(exc)
    else:
        return envelope.lane in LANES
    assert len(sentence.splitlines()) == 1
    return False


@settings(database=None)
@given(ANY_JSON)
def test_any_json_text_parses_or_is_refused(value: Any) -> None:
    """No JSON document, NaN and lone surrogates included, leads to any other error."""
    assert not parses_or_is_refused(json.dumps(value)) or isinstance(value, dict)


@settings(database=None)
@given(st.dictionaries(st.sampled_from([*Envelope.model_fields, "extra"]), ANY_JSON))
def test_any_values_in_the_fields_parse_or_are_refused(fields: dict[str, Any]) -> None:
    """Whatever stands in the fields leads to an envelope or to InvalidEnvelope."""
    envelope = {**GOOD, **fields}
    outcomes = [parses_or_is_refused(envelope), parses_or_is_refused(json.dumps(envelope))]

    assert not ("extra" in fields and any(outcomes))


@settings(database=None)
@given(st.binary() | st.text() | st.text(alphabet='{}[]":,\\0123456789eE+-.truefalsn '))
def test_any_bytes_and_any_text_parse_or_are_refused(raw: str | bytes) -> None:
    """Noise never leads to any other error, and is never taken for a message."""
    assert not parses_or_is_refused(raw)
