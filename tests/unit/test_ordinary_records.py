"""Ordinary records are read without pydantic, many at once, and become what the rules make of each of them."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope, parse_envelope_fast
from starter.records.formats import RECORD_MAX_BYTES, Formats
from starter.records.mapping import FormatOptions
from starter.records.record import DeadRecord, Record
from starter.starting.delivery import Delivery
from tests.unit.test_spark_fast_path import DEEP, LINES, NUMBERS, RULES

RULE = EnvelopeRules({"feed": "short"}, 4096)
FRAMES = (b"\0", b"\3")  # first bytes of frames of schema registries, which only records have
ORDINARY: dict[str, Any] = {"kind": "feed", "id": "1"}


def describe(envelope: Envelope | None) -> tuple[Any, ...]:
    """Give all that can be told of an envelope: -0.0 differs from 0, true from 1, and one time zone from another."""
    assert envelope is not None
    types = [value.__class__ for _, value in envelope]
    return repr(envelope), envelope.model_fields_set, envelope.model_dump_json(), types


def summarize(found: Delivery | DeadRecord) -> tuple[Any, ...]:
    """Give all that can be told of a decoded record; of one that is no object, only the class of its error."""
    if isinstance(found, DeadRecord):
        return found.error_class, *((found.field, found.reason) if found.field != "value" else ())
    return *found[:4], *describe(found.envelope)


def apply_rules(value: bytes, rules: EnvelopeRules, offset: int) -> tuple[Any, ...]:
    """Give the same as pydantic's rules have it."""
    try:
        envelope = parse_envelope(value, rules)
    except InvalidEnvelope as exc:
        if value[:1] in FRAMES:
            return ("NotJson",)
        return exc.flaw, *((exc.field, exc.problem) if exc.field != "envelope" else ())
    return envelope.kind, envelope.id, "feeds/0", offset, *describe(envelope)


def to_records(lines: list[bytes]) -> list[Record]:
    """Make records without a key or headers."""
    return [Record("feeds", 0, offset, 0, None, line) for offset, line in enumerate(lines)]


@settings(database=None, max_examples=400)
@given(LINES, st.sampled_from(RULES))
@example([b'{"kind":"feed","id":"1","payload":[%b]}' % number.encode() for number in NUMBERS], RULES[0])
@example([b'{"kind":"feed","id":"1","tolerance_seconds":%b}' % number.encode() for number in NUMBERS], RULES[0])
@example([b"\0\xff", b"\3", b"\0"], RULES[0])
@example([b'{"kind":"feed","id":"1","payload":%b}' % deep.encode() for deep in DEEP], RULES[1])
def test_records_become_what_the_rules_make_of_each(lines: list[bytes], rules: EnvelopeRules) -> None:
    """The same envelope, down to the types of its values, or the same class of error with the same sentence."""
    found = list(Formats(FormatOptions(), rules).decode_many(to_records(lines)))

    assert [summarize(each) for each in found] == [
        apply_rules(line, rules, offset) for offset, line in enumerate(lines)
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"payload": {"url": "https://example.org/", "n": [1, 2.5, None]}},
        {"payload": {"text": "ä" * 1000}},
        {"id": 17, "tolerance_seconds": 60, "scheduled_at": "2026-12-01T13:30:00.25+01:00"},
        {"lane": "long", "priority": 1, "tenant": "t", "correlation_id": "ü", "idempotency_key": "k"},
    ],
)
def test_ordinary_fields_need_no_other_rules(more: dict[str, Any]) -> None:
    """What senders usually write is not in doubt, and equals what the rules make of it."""
    assert describe(parse_envelope_fast(ORDINARY | more, RULE)) == describe(parse_envelope(ORDINARY | more, RULE))


@pytest.mark.parametrize(
    ("key_bytes", "value_bytes"), [(0, 500_000), (500_000, 500_000), (500_001, 500_000), (500_001, 499_999), (1, 10**6)]
)
def test_the_size_limit_counts_key_and_value(key_bytes: int, value_bytes: int) -> None:
    """A record is too large as a whole, also if its value alone is not."""
    empty = b'{"kind":"feed","id":"1","payload":""}'
    value = empty.replace(b'""', b'"%b"' % (b"x" * (value_bytes - len(empty))))
    record = Record("feeds", 0, 1, 0, b"k" * key_bytes, value)
    (found,) = Formats(FormatOptions(), EnvelopeRules({"feed": "short"}, 0)).decode_many([record])

    assert isinstance(found, DeadRecord) == (key_bytes + value_bytes > RECORD_MAX_BYTES)
    if isinstance(found, DeadRecord):
        assert str(found).startswith(f"record: is {key_bytes + value_bytes} bytes with key and headers")
