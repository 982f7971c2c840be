"""Calendars: the clock on the wall decides, and no change of clocks gives a moment twice or leaves one out."""

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities import Again, cron, daily
from activities.api.calendar import Calendar, InvalidCalendar
from activities.api.outcome import to_outcome
from shared.errors import GiveUp, InvalidOutcome
from shared.messages.decision import plan_return

BERLIN = "Europe/Berlin"
ZONES = sorted(zoneinfo.available_timezones())
FROM = datetime(1970, 1, 1, tzinfo=UTC)
TO = datetime(2100, 1, 1, tzinfo=UTC)
LAST_CHANGED = 2040  # from 2038 on, clocks change by the same rule each year
EIGHT = datetime(2026, 11, 26, 8, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)

zones = st.sampled_from(ZONES)
moments = st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 — as it wants them


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """Give when clocks of a zone change, from the year 1970 to 2100, found without what is under test."""
    found: list[datetime] = []
    where = ZoneInfo(zone)
    step = timedelta(days=9)
    at = FROM
    while at < TO:
        if at.astimezone(where).utcoffset() != (at + step).astimezone(where).utcoffset():
            found += _search(where, at, at + step)
        at += step
    return tuple(found)


def read_rules(zone: str) -> bytes:
    """Give the data of a zone, which zones with several names share; a name that only this machine has is its own."""
    data = resources.files("tzdata").joinpath("zoneinfo", *zone.split("/"))
    return data.read_bytes() if data.is_file() else zone.encode()


def _search(zone: ZoneInfo, low: datetime, high: datetime) -> Iterator[datetime]:
    """Give the change of clocks between two moments, or both of two that are close."""
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = (low + (high - low) / 2).replace(microsecond=0)
        low, high = (middle, high) if middle.astimezone(zone).utcoffset() == before else (low, middle)
    yield high


def follow(calendar: Calendar, begin: datetime, end: datetime) -> list[datetime]:
    """Give the moments of a calendar between two moments."""
    found: list[datetime] = []
    while (begin := calendar.next(begin)) <= end:
        found.append(begin)
    return found


def read_wall(moment: datetime, zone: str) -> datetime:
    """Give what clocks show, without a zone."""
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def check_daily(zone: str, hour: int, minute: int, about: datetime) -> None:
    """Check the moments of some days: one for each day, at the time or, if it is left out that day, right after it."""
    calendar = daily(f"{hour:02}:{minute:02}", zone=zone)
    found = follow(calendar, about - 3 * DAY, about + 3 * DAY)
    days = (read_wall(about, zone).date() + n * DAY for n in range(-5, 6))
    every = sorted({find_daily(zone, hour, minute, day) for day in days})

    assert found == [moment for moment in every if about - 3 * DAY < moment <= about + 3 * DAY]


@cache
def find_daily(zone: str, hour: int, minute: int, day: date) -> datetime:
    """Give the moment of a day by the offsets before and after a change: PEP 495 defines both for a time left out."""
    wall = datetime(day.year, day.month, day.day, hour, minute, tzinfo=ZoneInfo(zone))  # the first of two
    moment = wall.astimezone(UTC)
    if read_wall(moment, zone) == wall.replace(tzinfo=None):
        return moment

    # the change is between them
    low = wall.replace(fold=1).astimezone(UTC)
    high = moment

    while read_wall(low, zone) < wall.replace(tzinfo=None) or read_wall(low, zone).second:
        low += timedelta(seconds=60 - read_wall(low, zone).second)

    assert low <= high + MINUTE
    return low


@settings(max_examples=150, database=None)
@given(zones, st.integers(0, 23), st.integers(0, 59), moments)
def test_a_time_of_day_comes_once_a_day_in_every_zone_and_year(
    zone: str, hour: int, minute: int, about: datetime
) -> None:
    """Whatever the clocks do."""
    check_daily(zone, hour, minute, about)


@settings(max_examples=150, database=None)
@given(
    st.sampled_from(
        [
            "Europe/Berlin",
            "America/New_York",
            "Australia/Lord_Howe",
            "Africa/Cairo",
            "Asia/Gaza",
            "America/Santiago",
            "Pacific/Apia",
            "Africa/Monrovia",
            "Asia/Tehran",
            "Antarctica/Troll",
        ]
    ),
    st.data(),
)
def test_a_time_of_day_comes_once_around_a_change_of_clocks(zone: str, data: st.DataObject) -> None:
    """Zones with changes of half an hour, of two hours, of a day, at midnight and by seconds; times near the change."""
    change = data.draw(st.sampled_from(changes(zone)))
    near = read_wall(change + data.draw(st.integers(-200, 200)) * MINUTE, zone)
    check_daily(zone, near.hour, near.minute, change)


@pytest.mark.long
@pytest.mark.parametrize("zone", sorted({read_rules(zone): zone for zone in ZONES}.values()))
def test_a_time_of_day_comes_once_around_every_change_of_clocks(zone: str) -> None:
    """All changes of all zones from 1970 to 2040, at times before, in and after what is left out or shown twice."""
    for change in changes(zone):
        if change.year > LAST_CHANGED:
            break
        for minutes in (-61, -30, -1, 0, 29, 61):
            near = read_wall(change + minutes * MINUTE, zone)
            check_daily(zone, near.hour, near.minute, change)


def expect_running(wanted: tuple[int, ...], zone: str, begin: datetime, end: datetime) -> list[datetime]:
    """Give each minute between two moments at which the clock shows one of some minutes."""
    walls = ((begin + n * timedelta(seconds=30)) for n in range(1, 2 * round((end - begin) / MINUTE) + 1))
    return [at for at in walls if (wall := read_wall(at, zone)).second == 0 and wall.minute in wanted]


@settings(max_examples=40, database=None)
@given(st.sampled_from([BERLIN, "Australia/Lord_Howe", "Asia/Kuala_Lumpur", "Pacific/Apia"]), st.data())
def test_what_runs_every_hour_goes_on_through_a_change_of_clocks(zone: str, data: st.DataObject) -> None:
    """Every minute that passes and matches counts, in both passes of an hour that comes twice."""
    change = data.draw(st.sampled_from(changes(zone)))
    begin = change - 2 * timedelta(hours=1)
    end = change + 2 * timedelta(hours=1)
    hours = data.draw(st.sampled_from(["*", "*/1", "0-23", "0/1", "12-11", "0-11,12-23"]))
    for minutes, wanted in (("*/15", (0, 15, 30, 45)), ("*/30", (0, 30)), ("0", (0,)), ("*/60", (0,))):
        calendar = cron(f"{minutes} {hours} * * *", zone=zone)
        assert follow(calendar, begin, end) == expect_running(wanted, zone, begin, end)


@pytest.mark.parametrize(
    ("calendar", "after", "expected"),
    [
        (daily("08:00"), "2026-11-26T07:59:59", "2026-11-26T08:00"),
        (daily("08:00"), "2026-11-26T08:00:00", "2026-11-27T08:00"),
        (daily("8:00", zone=BERLIN, weekdays="mon-fri"), "2026-11-27T12:00", "2026-11-30T07:00"),
        (daily("02:30", zone=BERLIN), "2026-03-28T12:00", "2026-03-29T01:00"),  # 02:30 is left out: 03:00
        (daily("02:30", zone=BERLIN), "2026-03-29T01:00", "2026-03-30T00:30"),
        (daily("02:30", zone=BERLIN), "2026-10-24T12:00", "2026-10-25T00:30"),  # it comes twice: the first
        (daily("02:30", zone=BERLIN), "2026-10-25T00:30", "2026-10-26T01:30"),
        (cron("*/30 * * * *", zone=BERLIN), "2026-10-25T00:30", "2026-10-25T01:00"),  # 02:00 once more
        (cron("0 */2 * * *", zone=BERLIN), "2026-03-29T00:00", "2026-03-29T01:00"),
        (cron("0 9 L * *"), "2026-02-01T00:00", "2026-02-28T09:00"),
        (cron("0 9 * * fri#2"), "2026-11-01T00:00", "2026-11-13T09:00"),
        (cron("0 * 29 2 *"), "2026-11-26T00:00", "2028-02-29T00:00"),
        (cron("*/15 */1 * * *", zone=BERLIN), "2026-10-25T00:45", "2026-10-25T01:00"),
        (cron("*/15 0-23 * * *", zone=BERLIN), "2026-10-25T00:45", "2026-10-25T01:00"),
        (cron("*/30 */1 * * *", zone="Australia/Lord_Howe"), "2026-04-04T14:30", "2026-04-04T15:00"),
        (cron("0 9 * * fril"), "2026-11-01T00:00", "2026-11-27T09:00"),
    ],
    ids=str,
)
def test_the_next_moment_is_the_first_after_another(calendar: Calendar, after: str, expected: str) -> None:
    """In UTC, never the moment itself."""
    assert calendar.next(datetime.fromisoformat(after + "Z")) == datetime.fromisoformat(expected + "Z")


SAME = [
    ("0 8 * * sat-sun", "0 8 * * 0,6"),
    ("0 8 * * 6-7", "0 8 * * 0,6"),
    ("0 8 * * mon-sun", "0 8 * * *"),
    ("0 8 * * Friday-MON", "0 8 * * 0,1,5,6"),
    ("0 8 * * 7-2", "0 8 * * 0,1,2"),
    ("0 8 * * fri-mon/2", "0 8 * * 0,5"),
    ("0 22-6 * * *", "0 0-6,22,23 * * *"),
    ("0 22-6/2 * * *", "0 0,2,4,6,22 * * *"),
    ("55-5 8 * * *", "0-5,55-59 8 * * *"),
    ("0 8 30-2 * *", "0 8 1,2,30,31 * *"),
    ("0 8 1 nov-feb *", "0 8 1 1,2,11,12 *"),
    ("0 8 1 january *", "0 8 1 1 *"),
    ("*/60 */24 */31 */12 *", "0 0 1 1 *"),
    ("@hourly", "0 * * * *"),
    (" @Daily ", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@weekly", "0 0 * * 0"),
    ("@monthly", "0 0 1 * *"),
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
]


@pytest.mark.parametrize(("written", "plain"), SAME, ids=[written for written, _ in SAME])
def test_other_ways_to_write_an_expression_give_the_same_moments(written: str, plain: str) -> None:
    """A range may lead over the end of its field, names may be whole, and the words that begin with @ are taken."""
    calendar = cron(written)
    expected = cron(plain)
    after = same = datetime(2026, 2, 20, tzinfo=UTC)

    for _ in range(40):
        after = calendar.next(after)
        same = expected.next(same)
        assert after == same


def test_weekdays_of_a_time_of_day_may_lead_over_the_end_of_the_week() -> None:
    """As in a cron expression, which they become."""
    weekend = daily("08:00", weekdays="sat-sun")

    assert [at.weekday() for at in follow(weekend, EIGHT, EIGHT + 8 * DAY)] == [5, 6]


@pytest.mark.parametrize(
    ("make", "given", "sentence"),
    [
        (daily, {"at": "25:00"}, "daily(at='25:00') is no time of a day; write for example '08:00'"),
        (daily, {"at": 8}, "daily(at=8) is no time of a day; write for example '08:00'"),
        (daily, {"at": "08:00", "weekdays": "* 1"}, "daily(weekdays='* 1') names no weekdays; write for example"),
        (
            daily,
            {"at": "08:00", "weekdays": "moonday"},
            "cron('0 8 * * moonday'): weekday 'moonday' is no number, range",
        ),
        (daily, {"at": "08:00", "zone": "Europe/Berlln"}, "zone='Europe/Berlln' names no time zone; write for"),
        (daily, {"at": "08:00", "zone": "../x"}, "zone='../x' names no time zone"),
        (daily, {"at": "08:00", "zone": None}, "zone=None names no time zone"),
        (daily, {"at": "08:00", "early": 5}, "early=5 is no timedelta from 0 to 366 days; write timedelta(hours=1)"),
        (cron, {"expression": None}, "cron(None) is no string; write for example"),
    ],
    ids=range(9),
)
def test_what_no_calendar_has_is_refused_in_one_sentence(make: Any, given: dict[str, Any], sentence: str) -> None:
    """A ValueError of our own, that parks the message of a handler; its text names the argument."""
    with pytest.raises(InvalidCalendar) as caught:
        make(**given)

    assert str(caught.value).startswith(sentence)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, GiveUp)


REFUSED = [
    (
        "* * *",
        "has 3 of five fields; write minute, hour, day of the month, month and weekday, for example '0 8 * * mon",
    ),
    ("0 0 8 * * *", "has 6 fields; write five, without seconds or years: minute, hour,"),
    ("0 0 8 ? * * 2026", "has 7 fields; write five, without seconds or years: minute, hour,"),
    ("@reboot", "no clock shows when a machine starts; start a message there instead"),
    ("@every 5m", "an interval is no time of a clock; return Again(after=timedelta(…)) instead"),
    ("@fortnightly", "no such word is known; write one of @hourly, @daily,"),
    ("CRON_TZ=Asia/Tokyo 0 8 * * *", "the zone stands beside the expression; write zone='Asia/Tokyo'"),
    ("0 8 ? * mon", "day of the month '?' is a form of Quartz; write '*'"),
    ("0 8 L-3 * *", "day of the month 'L-3' is a form of Quartz for a day before the last; write 'L'"),
    ("0 8 15W * *", "day of the month '15W' is a form of Quartz for the nearest working day; write 'LW'"),
    ("H/15 * * * *", "minute 'H/15' is a form of Jenkins; write a number,"),
    ("0~30 * * * *", "minute '0~30' is a form of cronie for a random moment; write a number"),
    ("*/90 * * * *", "minute '*/90' has a step beyond its range; give 1 to 60, or return Again(after=timedelta"),
    ("0 */36 * * *", "hour '*/36' has a step beyond its range; give 1 to 24, or return"),
    ("0 8-17/12 * * *", "hour '8-17/12' has a step beyond its range; give 1 to 10, or return"),
    ("5/90 * * * *", "minute '5/90' has a step beyond its range; give 1 to 60, or return"),
    ("*/0 * * * *", "minute '*/0' has no step after its '/'; write for example '*/15'"),
    ("61 * * * *", "minute '61' is no number, range or list of 0 to 59; correct it"),
    ("0 24 * * *", "hour '24' is no number, range or list of 0 to 23; correct it"),
    ("0 8 1,,2 * *", "day of the month '' is no number, range or list of 1 to 31; correct it"),
    ("0 8 * * L", "weekday 'L' is no number, range or list of 0 to 6 or names such as 'mon'; correct it"),
    ("0 8 * * fri#6", "weekday 'fri#6' is no number, range or list of 0 to 6 or names such as 'mon'; correct it"),
    ("0 0 31 4,6 *", "no month has such a day; write for example '0 8 * * mon-fri' for weekdays at eight"),
]


@pytest.mark.parametrize(("expression", "sentence"), REFUSED, ids=[expression for expression, _ in REFUSED])
def test_a_form_of_other_programs_is_named_in_its_refusal(expression: str, sentence: str) -> None:
    """The text names the field, the part of it, and what to write instead."""
    with pytest.raises(InvalidCalendar) as caught:
        cron(expression)

    assert str(caught.value).startswith(f"cron({expression!r}): {sentence}")


@pytest.mark.parametrize(
    ("early", "ran_at", "expected"),
    [
        (0, EIGHT, EIGHT + DAY),
        (0, EIGHT + timedelta(seconds=40), EIGHT + DAY),
        (0, EIGHT + timedelta(hours=5), EIGHT + DAY),
        (0, EIGHT - timedelta(minutes=10), EIGHT),  # a person asked for it: one more run
        (60, EIGHT - timedelta(minutes=61), EIGHT),
        (60, EIGHT - timedelta(minutes=60), EIGHT + DAY),
        (60, EIGHT - timedelta(minutes=10), EIGHT + DAY),  # the run counts for the moment
        (60, EIGHT, EIGHT + DAY),
    ],
)
def test_a_run_counts_for_a_moment_from_early_before_it_on(early: int, ran_at: datetime, expected: datetime) -> None:
    """So what idle capacity has pulled forward does not run again, and nothing that comes sooner counts."""
    calendar = daily("08:00", early=timedelta(minutes=early))
    outcome = to_outcome(Again(at=calendar), 100, ran_at=ran_at.timestamp())
    due, earliest, latest, _ = plan_return(outcome, ran_at.timestamp(), lambda tolerance: tolerance / 2)

    assert outcome.at == expected.timestamp()
    assert outcome.earliest_at == (expected - timedelta(minutes=early)).timestamp()
    assert 0 < due / 1000 - expected.timestamp() <= 30
    assert 0 < latest / 1000 - expected.timestamp() <= 60
    assert earliest / 1000 == expected.timestamp() - 60 * early


def test_a_tolerance_of_its_own_counts_and_an_earliest_does_not_go_with_a_calendar() -> None:
    """With none the message is due at the minute's first second."""
    exact = to_outcome(Again(at=daily("08:00"), tolerance=timedelta(0)), 100, ran_at=EIGHT.timestamp())

    assert exact.tolerance == 0
    with pytest.raises(InvalidOutcome, match=r"does not go with a calendar; write daily\(…, early="):
        to_outcome(Again(at=daily("08:00"), earliest=timedelta(hours=1)), 100, ran_at=EIGHT.timestamp())


def test_zones_are_known_without_a_database_of_the_machine() -> None:
    """They come with a package then."""
    data = resources.files("tzdata") / "zoneinfo" / "Europe" / "Berlin"

    assert data.read_bytes()[:4] == b"TZif"
