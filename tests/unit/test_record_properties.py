"""What holds for any record: it is read or dead, and each format carries the same message."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.envelope import parse_envelope
from starter.records.record import ERROR_CLASSES, DeadRecord
from tests.support.record_samples import (
    BINARY,
    EVENT,
    MAPPED,
    RULES,
    STRUCTURED,
    TRACEPARENT,
    Options,
    decode,
    record,
    stop,
    write,
)

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


@settings(database=None)
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
        error_class = exc.error_class
        sentence = str(exc)
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


@settings(database=None)
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
