"""Calendars: moments by the clock on the wall of a time zone, none twice and none left out when clocks change."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from activities.api.cron_fields import read_expression
from shared.errors import InvalidOutcome

EARLY_MAX = timedelta(days=366)
KNOWN_MAX = 1000  # calendars that a process keeps parsed: handlers make theirs anew in each call
EXAMPLE = "write for example '0 8 * * mon-fri' for weekdays at eight"
UNKNOWN_ZONE = "zone={!r} names no time zone; write for example 'Europe/Berlin'"
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
_WEEKDAYS = re.compile(r"[a-z0-7]+([,-][a-z0-7]+)*", re.IGNORECASE)
_DAY = timedelta(days=1)
_MINUTE = timedelta(minutes=1)
_EVERY_HOUR = set(range(24))


class InvalidCalendar(InvalidOutcome, ValueError):
    """A calendar can't be meant; the text names the argument. In a handler's call it parks the message."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Moments by the clock of a zone, as a cron expression gives them; make one with `daily` or `cron`.

    A time that the clock jumps over counts at the first minute that there is after it, and one that it shows twice
    counts the first time. Only where the expression names all hours, as `*` does, every minute counts that matches:
    what runs every hour goes on through both passes. A run counts for a moment from `early` before it on.
    """

    expression: str
    zone: str = "UTC"
    early: timedelta = timedelta(0)

    def next(self, after: datetime) -> datetime:
        """Give the first moment after another one, which has a time zone; in UTC."""
        cron, zone = _parse(self.expression, self.zone)
        find = _find_in_any_hour if cron.hours == _EVERY_HOUR else _find_in_some_hours
        return find(cron, zone, after)


def daily(at: str, *, zone: str = "UTC", weekdays: str = "*", early: timedelta = timedelta(0)) -> Calendar:
    """Give the moments at which clocks of a zone show a time such as "08:00", on all weekdays or, say, on "mon-fri".

    `weekdays` are names or numbers (0 is Sunday), with commas and hyphens. Raises InvalidCalendar.
    """
    if (found := _match(_TIME, at)) is None:
        raise InvalidCalendar(f"daily(at={at!r}) is no time of a day; write for example '08:00'")
    if weekdays != "*" and _match(_WEEKDAYS, weekdays) is None:
        raise InvalidCalendar(
            f"daily(weekdays={weekdays!r}) names no weekdays; write for example 'mon-fri' or 'sat,sun'"
        )
    return cron(f"{int(found[2])} {int(found[1])} * * {weekdays}", zone=zone, early=early)


def cron(expression: str, *, zone: str = "UTC", early: timedelta = timedelta(0)) -> Calendar:
    """Give the moments of a cron expression of five fields by the clocks of a zone; raises InvalidCalendar.

    Beside numbers, names, `*`, ranges, lists and steps there are `L` and `LW` for the last day and the last weekday of
    a month, `fri#2` for its second Friday and `5L` for its last. `@daily` and its like are taken, too.
    """
    if not (_is_a(timedelta, early) and timedelta(0) <= early <= EARLY_MAX):
        raise InvalidCalendar(
            f"early={early!r} is no timedelta from 0 to {EARLY_MAX.days} days; write timedelta(hours=1)"
        )
    if not _is_a(str, zone):
        raise InvalidCalendar(UNKNOWN_ZONE.format(zone))
    if not _is_a(str, expression):
        raise InvalidCalendar(f"cron({expression!r}) is no string; {EXAMPLE}")

    _parse(expression, zone)
    return Calendar(expression, zone, early)


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _match(pattern: re.Pattern[str], value: object) -> re.Match[str] | None:
    return pattern.fullmatch(value) if isinstance(value, str) else None


@lru_cache(KNOWN_MAX)
def _parse(expression: str, zone: str) -> tuple[CronSim, ZoneInfo]:
    try:
        found = ZoneInfo(zone)
    except (LookupError, ValueError, OSError) as exc:
        raise InvalidCalendar(UNKNOWN_ZONE.format(zone)) from exc

    try:
        fields = read_expression(expression)
        cron = CronSim(fields, datetime(2024, 1, 1))  # noqa: DTZ001 — the time that a wall shows has no zone
        next(CronSim(fields, cron.dt))
    except ValueError as exc:
        raise InvalidCalendar(f"cron({expression!r}): {exc}") from exc
    except CronSimError as exc:
        raise InvalidCalendar(f"cron({expression!r}): no month has such a day; {EXAMPLE}") from exc
    except StopIteration:
        raise InvalidCalendar(f"cron({expression!r}): no year has such a day; {EXAMPLE}") from None

    return cron, found


def _find_in_some_hours(cron: CronSim, zone: ZoneInfo, after: datetime) -> datetime:
    """Follow the clock on the wall: each time that matches counts once.

    The moments of later times are never earlier, so the first one after `after` leaves none out.
    """
    for wall in CronSim(" ".join(cron.parts[1:]), _read_wall(after, zone)):
        moment = _find_moment(wall, zone)
        if moment > after:
            return moment
    raise InvalidCalendar(f"nothing of {' '.join(cron.parts[1:])} comes after {after.isoformat()}")


def _find_moment(wall: datetime, zone: ZoneInfo) -> datetime:
    """Give when clocks first show a time, or the first minute after it that they show."""
    while True:
        moment = wall.replace(tzinfo=zone).astimezone(UTC)
        if _read_wall(moment, zone) == wall:
            return moment
        wall += _MINUTE


def _find_in_any_hour(cron: CronSim, zone: ZoneInfo, after: datetime) -> datetime:
    """Follow time as it passes, minute by minute: each at which the clock matches counts."""
    moment = after.astimezone(UTC)
    wall = _read_wall(moment, zone)

    while True:
        # days without a match are left out, but for two before one: no change moves clocks by more than a day
        while not any(_matches_day(cron, wall + days * _DAY) for days in range(3)):
            moment += _DAY
            wall = _read_wall(moment, zone)
        for _ in range(_DAY // _MINUTE):
            moment += timedelta(seconds=60 - wall.second, microseconds=-wall.microsecond)
            wall = _read_wall(moment, zone)
            # in former times clocks also changed by parts of a minute
            if wall.minute in cron.minutes and wall.second == 0 and _matches_day(cron, wall):
                return moment


def _matches_day(cron: CronSim, wall: datetime) -> bool:
    return wall.month in cron.months and cron.match_day(wall)


def _read_wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)
