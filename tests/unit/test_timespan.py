"""Durations and moments as people write and read them."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.timespan import (
    MOMENT_MAX,
    ceil_ms,
    floor_ms,
    format_moment,
    format_seconds,
    parse_duration,
    parse_moment,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0.0),
        ("250ms", 0.25),
        ("90s", 90.0),
        ("15m", 900.0),
        ("6h", 21_600.0),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("1.5h", 5_400.0),
        ("0.001s", 0.001),
        ("2d12h", 216_000.0),
        ("1h30m15s", 5_415.0),
        ("1m1ms", 60.001),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    """Numbers with a unit, also several in a row, add up."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "90", "s", "6 h", " 6h", "6h ", "-6", "+6h", "6H", "6hours", "h6", ".5h", "1.h", "1e3s", "6h,2m", "\u0666h"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A missing unit, blanks, signs and foreign digits are refused with the text and an example."""
    with pytest.raises(ValueError, match="no duration; write for example 90s, 15m, 6h or 2d") as caught:
        parse_duration(text)

    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["-6h", "-1d12h", "-0.5s"])
def test_a_negative_duration_is_refused_as_that(text: str) -> None:
    """It is what people write who mean the past."""
    with pytest.raises(ValueError, match=f"is '{text}', which is negative; leave out the sign, for example {text[1:]}"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9999999999d", "9" * 400 + "s", "999999999d999999999d"])
def test_a_duration_longer_than_the_calendar_is_refused(text: str) -> None:
    """A number that no duration can hold is a mistake, never an overflow."""
    with pytest.raises(ValueError, match="longer than time itself"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("+15m", NOW + timedelta(minutes=15)),
        ("+0s", NOW),
        ("+1d12h", NOW + timedelta(hours=36)),
        ("2026-11-21T20:00:00Z", datetime(2026, 11, 21, 20, tzinfo=UTC)),
        ("2026-11-21t20:00:00.5z", datetime(2026, 11, 21, 20, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-11-21T20:00:00+01:00", datetime(2026, 11, 21, 19, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_and_given_in_utc(text: str, expected: datetime) -> None:
    """Now, a delay from now on, or a moment with any offset."""
    moment = parse_moment(text, NOW)

    assert moment == expected
    assert moment.tzinfo is UTC


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "no moment; write 2026-11-21T20:00:00Z, +15m or now"),
        ("tomorrow", "no moment"),
        ("15m", "no moment"),
        ("+", "no moment"),
        ("+15", "no moment"),
        ("+99999999d", "no moment"),
        ("2026-13-01T00:00:00Z", "no moment"),
        ("0001-01-01T00:00:00+14:00", "no moment"),
        ("9999-12-31T23:59:59-14:00", "no moment"),
        ("2026-11-21T20:00:00", "has no offset; add one, for example Z"),
        ("2026-11-21", "has no offset"),
    ],
)
def test_what_is_no_moment_is_refused(text: str, phrase: str) -> None:
    """Unreadable, impossible and naive moments are refused with the text and what to write."""
    with pytest.raises(ValueError, match=re.escape(f"is {text!r}, ")) as caught:
        parse_moment(text, NOW)

    assert phrase in str(caught.value)


def test_a_moment_counts_from_the_present_when_none_is_given() -> None:
    """Without `now` the clock is read."""
    before = datetime.now(UTC)
    moment = parse_moment("now")
    after = datetime.now(UTC)

    assert before <= moment <= after


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.9, "9.9 s"),
        (10, "10 s"),
        (59, "59 s"),
        (60, "1 min"),
        (150, "2 min 30 s"),
        (119.9, "1 min 59 s"),
        (3_600, "1 h"),
        (3_659, "1 h"),
        (5_400, "1 h 30 min"),
        (86_400, "1 d"),
        (12 * 86_400 + 4 * 3_600, "12 d 4 h"),
        (3_653 * 86_400, "3653 d"),
        (-150, "-2 min 30 s"),
    ],
)
def test_seconds_are_written_in_at_most_two_units(seconds: float, expected: str) -> None:
    """People read the two largest units; the rest is cut off."""
    assert format_seconds(seconds) == expected


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0.0, "1970-01-01 00:00:00 UTC"),
        (1_795_291_200.999, "2026-11-21 20:00:00 UTC"),
        (-1.0, "1969-12-31 23:59:59 UTC"),
    ],
)
def test_a_moment_is_written_in_utc_to_the_second(epoch: float, expected: str) -> None:
    """Whatever the machine's time zone, people read UTC."""
    assert format_moment(epoch) == expected


@settings(database=None)
@given(st.text() | st.from_regex(r"[0-9.]{1,6}(ms|s|m|h|d|w)([0-9]{1,3}(s|m))?", fullmatch=True))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    """No text leads to any other error, and no duration is negative."""
    try:
        duration = parse_duration(text)
    except ValueError:
        duration = timedelta(0)

    assert duration >= timedelta(0)


@given(st.integers(0, round(MOMENT_MAX * 1000)))
def test_a_moment_of_whole_milliseconds_is_rounded_to_itself(milliseconds: int) -> None:
    """Most of them are no floats, and the product with 1000 may lie on either side."""
    assert ceil_ms(milliseconds / 1000) == floor_ms(milliseconds / 1000) == milliseconds


@given(st.floats(0, MOMENT_MAX))
def test_a_moment_lies_between_its_milliseconds(moment: float) -> None:
    """Rounded up it is never early, rounded down never late, and by less than one."""
    down = floor_ms(moment)
    up = ceil_ms(moment)

    assert down / 1000 <= moment <= up / 1000
    assert up - down in (0, 1)
