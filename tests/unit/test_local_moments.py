"""Local moments: what a time without an offset means once its zone is named, and what it means without."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from shared.errors import InvalidEnvelope, InvalidSetting
from shared.messages.envelope import EnvelopeRules, parse_envelope
from starter.files.mapping import RowMapping
from starter.records.local_moments import LocalMoments
from starter.records.mapping import FormatOptions

RULES = EnvelopeRules({"feed": "short"})
NEW_YORK = LocalMoments.read("America/New_York", "09:00")
NAIVE = datetime(2026, 11, 21, 20)  # noqa: DTZ001 — naive is the point


def read(value: Any, local: LocalMoments) -> datetime | None:
    """Give when the message of a row is due, read by a column's name."""
    fields = RowMapping(local=local).to_fields({"kind": "feed", "id": "1", "scheduled_at": value})
    return parse_envelope(fields, RULES).scheduled_at


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        ("2026-11-21", datetime(2026, 11, 21, 14, tzinfo=UTC)),
        ("2026-07-21", datetime(2026, 7, 21, 13, tzinfo=UTC)),
        (date(2026, 11, 21), datetime(2026, 11, 21, 14, tzinfo=UTC)),
        ("2026-11-21 20:00", datetime(2026, 11, 22, 1, tzinfo=UTC)),
        (" 2026-11-21T20:00:00.5 ", datetime(2026, 11, 22, 1, 0, 0, 500_000, tzinfo=UTC)),
        (NAIVE, datetime(2026, 11, 22, 1, tzinfo=UTC)),
        ("2026-11-21T20:00:00Z", datetime(2026, 11, 21, 20, tzinfo=UTC)),
        (1795291200, datetime(2026, 11, 21, 20, tzinfo=UTC)),
        (None, None),
    ],
)
def test_a_named_zone_gives_its_offset(value: Any, moment: datetime | None) -> None:
    """To days, at the time that is named, and to times; what has an offset keeps it."""
    options = FormatOptions.read(kind="feed", id_from="/id", expires_at_from="/due", payload_from="/id")
    mapped = RowMapping(options, local=NEW_YORK).to_fields({"id": 1, "due": value})
    expiry = parse_envelope(mapped, RULES).expires_at

    assert (read(value, NEW_YORK), expiry) == (moment, moment)


@pytest.mark.parametrize(
    ("value", "zone", "at", "problem"),
    [
        ("2026-11-21", None, None, "is '2026-11-21', a day alone; say when on that day, for example with --at 09:00"),
        (date(2026, 11, 21), "UTC", None, "is '2026-11-21', a day alone; say when on that day"),
        ("2026-11-21T20:00", None, None, "which has no offset; add one, or name the zone of all rows with --zone"),
        (NAIVE, None, None, "is '2026-11-21T20:00:00', which has no offset; add one, or name the zone of all rows"),
        ("2026-11-01 01:30", "America/New_York", None, "clocks in America/New_York show twice; add an offset"),
        ("2026-03-08", "America/New_York", "02:30", "is '2026-03-08', which clocks in America/New_York show never"),
        ("2026-02-30", "UTC", "09:00", "which no calendar has (day is out of range for month); correct the date"),
        ("0001-01-01", "Asia/Tokyo", "00:00", "outside the calendar; correct the date"),
    ],
)
def test_a_time_that_may_be_another_moment_is_refused(
    value: Any, zone: str | None, at: str | None, problem: str
) -> None:
    """Nobody guesses a zone, an hour, or which of two equal times on the clock was meant."""
    with pytest.raises(InvalidEnvelope) as refused:
        read(value, LocalMoments.read(zone, at))

    assert refused.value.field == "scheduled_at"
    assert problem in refused.value.problem


@pytest.mark.parametrize(
    ("zone", "at", "sentence"),
    [
        ("Berlin", None, "--zone: is 'Berlin', no time zone; write for example America/New_York"),
        ("../etc", None, "--zone: is '../etc', no time zone"),
        (None, "09:00", "--at: says nothing without a zone; add --zone"),
        ("UTC", "9am", "--at: is '9am', no time of day; write for example 09:00"),
        ("UTC", "24:00", "--at: is '24:00', no time of day"),
    ],
)
def test_options_of_local_moments_that_say_nothing_are_refused(zone: str | None, at: str | None, sentence: str) -> None:
    """Before any row is read."""
    with pytest.raises(InvalidSetting) as refused:
        LocalMoments.read(zone, at)

    assert str(refused.value).startswith(sentence)
