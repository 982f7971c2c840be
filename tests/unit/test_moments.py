"""Moments as the systems write them that people come from, the same in every door; and delays of records."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidSetting
from shared.messages.envelope import EnvelopeRules, parse_envelope
from shared.messages.signals import to_epoch
from shared.messages.timespan import HORIZON, parse_moment
from starter.files.mapping import RowMapping
from starter.records.mapping import FormatOptions
from starter.records.record import DeadRecord
from tests.support.record_samples import MAPPED, Options, decode, record, refuse

RULES = EnvelopeRules({"feed": "short"})
AT: Options = MAPPED | {"scheduled_at_from": "/at"}
DELAYED: Options = MAPPED | {"delay_from": "/delay"}
EIGHT = datetime(2026, 11, 21, 20, tzinfo=UTC)
WRITTEN_AT = datetime(2026, 11, 21, 20, tzinfo=UTC)
"""The timestamp of the sample records."""

MOMENTS: list[tuple[Any, datetime]] = [
    (1795291200, EIGHT),
    ("1795291200", EIGHT),
    (1795291200.25, EIGHT + timedelta(milliseconds=250)),
    ("1795291200.25", EIGHT + timedelta(milliseconds=250)),
    (1795291200250, EIGHT + timedelta(milliseconds=250)),
    ("1795291200250", EIGHT + timedelta(milliseconds=250)),
    (10**9, datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)),
    (10**12, datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)),
    ("Sat, 21 Nov 2026 20:00:00 GMT", EIGHT),
    (" Sat, 21 Nov 2026 20:00:00 GMT", EIGHT),
    ("2026-11-21T20:00:00.0000000Z", EIGHT),
    ("2026-11-21T21:00:00+01:00", EIGHT),
    ("2026-11-21 20:00:00+00", EIGHT),
    ("2026-11-21 20:00:00.25+00", EIGHT + timedelta(milliseconds=250)),
    ("2026-11-21 15:00:00-05", EIGHT),
    ("2026-11-21 20:00:00 UTC", EIGHT),
    ("2026-11-21 20:00:00.250000 UTC", EIGHT + timedelta(milliseconds=250)),
    ("2026-11-21 21:00:00 +0100", EIGHT),
    ("2026-11-21 20:00:00 +0000 UTC", EIGHT),
    ("2026-11-21T20:00:00+0000", EIGHT),
    ("2026-11-21T20:00Z", EIGHT),
    ("2026-11-21T20:00Z[UTC]", EIGHT),
    ("20261121T200000Z", EIGHT),
    ("2026-11-21T20:00:00,5Z", EIGHT + timedelta(milliseconds=500)),
    ("Sat, 21 Nov 2026 15:00:00 -0500", EIGHT),
    ("21 Nov 2026 20:00 UT", EIGHT),
    (" 2026-11-21T20:00:00Z\n", EIGHT),
]

NO_MOMENTS: list[tuple[Any, str]] = [
    (0, "is 0, whose unit is not clear; give seconds (ten digits) or milliseconds (thirteen) since 1970, or RFC 3339"),
    (999_999_999, "is 999999999, whose unit is not clear"),
    ("3600", "is '3600', whose unit is not clear"),
    (10**10, "is 10000000000, whose unit is not clear"),
    (10**12 - 1, "is 999999999999, whose unit is not clear"),
    (10**13, "is 10000000000000, whose unit is not clear"),
    (1795291200_000_000, "is a number far too large, whose unit is not clear"),
    ("1795291200000000000", "is '1795291200000000000', whose unit is not clear"),
    (10**4000, "is a number far too large"),
    ("9" * 5000, "is '9999999999999999999999999999999999999999', whose unit is not clear"),
    (-1795291200, "is -1795291200, whose unit is not clear"),
    (9_999_999_999, "more than ten years ahead"),
    ("-1795291200", "is '-1795291200', not RFC 3339"),
    ("١٧٩٥٢٩١٢٠٠", "not RFC 3339"),
    ("Sun, 31 Feb 2027 20:00:00 GMT", "which no calendar has"),
    ("Sun, 21 Fox 2027 20:00:00 GMT", "not RFC 3339"),
    ("2026-11-21T24:00:00Z", "which no calendar has"),
    ("2026-11-21 20:00:00 EST", "not RFC 3339"),
    ("11/21/2026 20:00:00 UTC", "not RFC 3339"),
    ("2026-11-21", "which has no offset; write it like 2026-11-21T20:00:00Z"),
    ("Sat, 21 Nov 2026 20:00:00 CET", "not RFC 3339"),
    ("2026-11-21T20:00:00", "which has no offset"),
    (True, "must be a string"),
    ([1795291200], "must be a string"),
]

DELAYS: list[tuple[Any, str | None, timedelta]] = [
    (0, None, timedelta(0)),
    (1500, None, timedelta(seconds=1.5)),
    ("1500", None, timedelta(seconds=1.5)),
    (900, "seconds", timedelta(minutes=15)),
    ("0.5", "seconds", timedelta(milliseconds=500)),
    (4_294_967_295, "milliseconds", timedelta(milliseconds=2**32 - 1)),
]

NO_DELAYS: list[tuple[Any, str | None, str]] = [
    (-1, None, "is -1; give a number of milliseconds, 0 or more"),
    ("-1", "seconds", "is '-1'; give a number of seconds, 0 or more"),
    ("soon", None, "is 'soon'; give"),
    ("", None, "is ''; give"),
    ("1e3", None, "is '1e3'; give"),
    (True, None, "is no number; give"),
    ([5], None, "is no number; give"),
    (1795291200, "seconds", "is 1795291200 seconds, more than ten years; correct it, or see --delay-unit"),
    ("9" * 400, None, "more than ten years"),
    (10**4000, None, "is a number far too large milliseconds, more than ten years"),
]


def find_moment(value: Any, options: Options) -> datetime:
    """Give when the message of a record is due."""
    envelope = decode(record(value), **options).envelope
    assert envelope is not None
    assert envelope.scheduled_at is not None
    return envelope.scheduled_at


@pytest.mark.parametrize(("value", "moment"), MOMENTS, ids=range(len(MOMENTS)))
def test_a_moment_may_be_written_in_several_ways(value: Any, moment: datetime) -> None:
    """As seconds or milliseconds since 1970, as a number or digits, as an HTTP date or RFC 3339; and so an expiry."""
    later: Options = MAPPED | {"expires_at_from": "/at"}
    envelope = decode(record({"at": value}), **later).envelope
    named = parse_envelope({"kind": "feed", "id": "a", "scheduled_at": value}, RULES)

    assert find_moment({"at": value}, AT) == moment
    assert envelope is not None
    assert (envelope.expires_at, named.scheduled_at) == (moment, moment)
    if isinstance(value, str):
        assert (parse_moment(value), to_epoch(value)) == (moment, moment.timestamp())


@pytest.mark.parametrize(("value", "phrase"), NO_MOMENTS, ids=range(len(NO_MOMENTS)))
def test_what_may_be_no_moment_is_refused(value: Any, phrase: str) -> None:
    """A number of another unit, a delay, or a date that is wrong is never taken for a moment."""
    error = refuse(record(json.dumps({"at": value}).encode() if not isinstance(value, int) else _write(value)), **AT)

    assert (error.error_class, error.field) == ("InvalidField", "scheduled_at")
    assert phrase in error.reason
    assert len(str(error).splitlines()) == 1


def _write(value: int) -> bytes:
    return b'{"at": %s}' % (b"true" if value is True else _digits(value))


def _digits(value: int) -> bytes:
    return b"%d" % value if abs(value) < 10**20 else b"1" + b"0" * 4000


@pytest.mark.parametrize(("value", "unit", "delay"), DELAYS, ids=range(len(DELAYS)))
def test_a_delay_counts_from_the_timestamp_of_its_record(value: Any, unit: str | None, delay: timedelta) -> None:
    """So a record that is read again gives the same moment; a header says the same as a value."""
    options = DELAYED | {"delay_unit": unit}
    in_header = record({}, {"x-delay": str(value).encode()})
    by_header = decode(in_header, **MAPPED, delay_from="header:x-delay", delay_unit=unit).envelope

    assert find_moment({"delay": value}, options) == WRITTEN_AT + delay
    assert by_header is not None
    assert by_header.scheduled_at == WRITTEN_AT + delay


@pytest.mark.parametrize(("value", "unit", "phrase"), NO_DELAYS, ids=range(len(NO_DELAYS)))
def test_what_is_no_delay_is_refused(value: Any, unit: str | None, phrase: str) -> None:
    """In a sentence about the delay."""
    raw = b'{"delay": 1%s}' % (b"0" * 4000) if value == 10**4000 else json.dumps({"delay": value}).encode()
    error = refuse(record(raw), **DELAYED, delay_unit=unit)

    assert (error.error_class, error.field) == ("InvalidField", "delay")
    assert phrase in error.reason


@pytest.mark.parametrize("timestamp", [-1, 2**63 - 1])
def test_a_delay_needs_a_timestamp_to_count_from(timestamp: int) -> None:
    """Records of old producers have none, and some have an absurd one."""
    error = refuse(record({"delay": 5})._replace(timestamp=timestamp), **DELAYED)

    assert str(error).startswith(f"delay: counts from the record's timestamp, which is {timestamp}; produce")


def test_a_record_without_a_delay_is_due_at_once() -> None:
    """As one without a moment."""
    for value in ({}, {"delay": None}):
        envelope = decode(record(value), **DELAYED).envelope
        assert envelope is not None
        assert envelope.scheduled_at is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (DELAYED | {"scheduled_at_from": "/at"}, "--delay-from: says when, as --scheduled-at-from does; use one"),
        (MAPPED | {"delay_unit": "seconds"}, "--delay-unit: says how --delay-from counts; add --delay-from"),
        (MAPPED | {"delay_from": "key"}, "--delay-from: is 'key'; write header:NAME or a JSON pointer"),
        ({"kind": "feed", "delay_from": "/d"}, "--delay-from: maps records whose id comes from somewhere, too"),
    ],
)
def test_options_about_delays_that_can_not_work_are_refused(options: Options, sentence: str) -> None:
    """Before any record is read."""
    with pytest.raises(InvalidSetting) as caught:
        FormatOptions.read(**options)

    assert str(caught.value).startswith(sentence)


def test_rows_have_no_delay_but_moments_as_records_have_them() -> None:
    """A row of a file or table has no timestamp that a delay could count from."""
    delayed, timed = (
        RowMapping(FormatOptions.read(kind="feed", id_from="/id", **{name: "/at"}))
        for name in ("delay_from", "scheduled_at_from")
    )
    with pytest.raises(InvalidSetting) as caught:
        delayed.check("jsonl")
    timed.check("jsonl")

    assert str(caught.value) == (
        "--delay-from: counts from a record's timestamp, which rows do not have; "
        "name the moment with --scheduled-at-from"
    )
    assert timed.to_fields({"id": 1, "at": 1795291200})["scheduled_at"] == 1795291200


FIRST = datetime(2001, 9, 9, 2, tzinfo=UTC)
LAST = datetime.now(UTC) + HORIZON - timedelta(days=1)
NEAR = st.datetimes(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None), timezones=st.just(UTC))


@given(NEAR, st.booleans())
def test_every_way_to_write_a_moment_gives_that_moment(moment: datetime, is_text: bool) -> None:  # noqa: FBT001 — drawn
    """To the precision of each: whole seconds, milliseconds, or all of it."""
    whole = moment.replace(microsecond=0)
    exact = whole + timedelta(milliseconds=moment.microsecond // 1000)
    seconds = int(whole.timestamp())
    milliseconds = int(whole.timestamp()) * 1000 + moment.microsecond // 1000

    assert find_moment({"at": str(seconds) if is_text else seconds}, AT) == whole
    assert find_moment({"at": str(milliseconds) if is_text else milliseconds}, AT) == exact
    assert find_moment({"at": format_datetime(whole, usegmt=True)}, AT) == whole
    assert find_moment({"at": moment.isoformat()}, AT) == moment


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=30), st.booleans())
def test_any_value_is_a_moment_a_delay_or_dead(value: Any, is_delay: bool) -> None:  # noqa: FBT001 — drawn
    """No value leads to another error, and a moment that is read lies within ten years."""
    options = DELAYED if is_delay else AT
    try:
        moment = find_moment({"at": value, "delay": value}, options)
    except DeadRecord:
        return
    assert moment <= datetime.now(UTC) + HORIZON
