"""Durations and moments as people and programs write them: "90s", "6h", "2d"; RFC 3339, epochs or "+15m"."""

import re
from datetime import UTC, datetime, timedelta

HORIZON = timedelta(days=3653)  # ten years; a time further ahead is most likely a wrong unit
MOMENT_MAX = 7_258_118_400.0  # the year 2200; Temporal's server counts nanoseconds since 1970, which end in 2262

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_NEGATIVE = re.compile(f"-(?:{_DURATION.pattern})+$", re.ASCII)

_SHOWN_MAX = 40
_NUMBER_SHOWN_MAX = 10**15
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# by these bounds a number says its unit: both stand for the years 2001 to 2286
_SECONDS_MIN = 10**9
_SECONDS_END = 10**10
_MILLISECONDS_MIN = 10**12
_MILLISECONDS_END = 10**13

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_TIME = r"(\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)"
# as written by psql (+00), BigQuery (UTC), Ruby and Go (+0000, +0000 UTC), JavaScript and Java (a zone in brackets)
_OFFSET = r"([Zz]|UTC|GMT|[+-]\d{2}(?::?\d{2})?)(?: UTC)?(?:\[(?:UTC|Z|Etc/UTC)\])?"
_WRITTEN = re.compile(rf"(\d{{4}}-\d{{2}}-\d{{2}})[Tt ]{_TIME} ?{_OFFSET}", re.ASCII)
_COMPACT = re.compile(r"(\d{8})T(\d{4}(?:\d{2}(?:\.\d+)?)?)([Zz]|[+-]\d{2}(?:\d{2})?)", re.ASCII)
# RFC 5322 and HTTP: the name of the day says nothing that the date does not
_DATED = re.compile(
    r"(?:[A-Z][a-z]{2}, )?(\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d{2}:\d{2}(?::\d{2})?) (GMT|UTC?|Z|[+-]\d{4})", re.ASCII
)
_LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}(?:[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?", re.ASCII)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def parse_duration(text: str) -> timedelta:
    """Read "90s", "1.5h" or "2d12h"; raises ValueError with half a sentence for anything else."""
    if _NEGATIVE.match(text):
        raise ValueError(f"is {text!r}, which is negative; leave out the sign, for example {text[1:]}")

    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"is {text!r}, no duration; write for example 90s, 15m, 6h or 2d")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError as exc:
        raise ValueError(f"is {text!r}, longer than time itself; write for example 2d") from exc


def parse_moment(text: str, now: datetime | None = None) -> datetime:
    """Read a moment that a person types: "now", "+15m" from now on, or what `read_moment` takes."""
    now = now or datetime.now(UTC)
    if text == "now":
        return now
    try:
        return now + parse_duration(text[1:]) if text.startswith("+") else read_moment(text)
    except (ValueError, OverflowError) as exc:
        if is_local(text):
            raise ValueError(f"is {text!r}, which has no offset; add one, for example Z") from exc
        raise ValueError(f"is {text!r}, no moment; write 2026-11-21T20:00:00Z, +15m or now") from exc


def read_moment(value: str | float | datetime) -> datetime:
    """Give a moment in UTC, as `read_with_offset` reads it; raises ValueError with half a sentence."""
    moment = read_with_offset(value)
    try:
        return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    except OverflowError as exc:
        raise ValueError(f"is {moment.isoformat()}, outside the calendar; correct the date") from exc


def read_with_offset(value: str | float | datetime) -> datetime:
    """Give a moment with the offset that it names; raises ValueError with half a sentence.

    Text may be RFC 3339, also without seconds, and as databases and languages print it; an HTTP date or one of a mail;
    or digits. A number, or digits, counts from 1970 and says its unit: ten digits are seconds, thirteen milliseconds.
    """
    if isinstance(value, str):
        value = _read_text(value)
    if not isinstance(value, datetime):
        return _read_epoch(value)
    if value.tzinfo is None:
        raise ValueError(f"is {value.isoformat()}, which has no offset; add one, for example Z")

    return value


def is_local(text: str) -> bool:
    """Whether a text is a day, or a day and a time, without the offset that makes it a moment."""
    return _LOCAL.fullmatch(text) is not None


def _read_text(text: str) -> datetime | str:
    """Give the moment that a text names, or its digits as they are."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        return stripped

    if (plain := _to_rfc3339(stripped)) is None:
        if is_local(stripped):
            raise ValueError(f"is {text[:_SHOWN_MAX]!r}, which has no offset; write it like 2026-11-21T20:00:00Z")
        example = "write it like 2026-11-21T20:00:00Z or …+01:00"
        raise ValueError(f"is {text[:_SHOWN_MAX]!r}, not RFC 3339 with an offset; {example}")

    try:
        return datetime.fromisoformat(plain)
    except ValueError as exc:
        raise ValueError(f"is {text[:_SHOWN_MAX]!r}, which no calendar has ({exc}); correct the date") from exc


def _to_rfc3339(text: str) -> str | None:
    """Give a text with an offset as Python reads it; None for any other."""
    if _RFC3339.fullmatch(text):
        return text.upper()

    if (found := _WRITTEN.fullmatch(text) or _COMPACT.fullmatch(text)) is not None:
        date, time, offset = found.groups()
    elif (found := _DATED.fullmatch(text)) is not None and found[2] in _MONTHS:
        date = f"{found[3]}-{_MONTHS.index(found[2]) + 1:02}-{int(found[1]):02}"
        time = found[4]
        offset = found[5]
    else:
        return None

    if offset[0] not in "+-":
        offset = "+00:00"
    return f"{date}T{time}{offset}"


def _read_epoch(value: str | float) -> datetime:
    number = float(value) if isinstance(value, str) else value
    if _SECONDS_MIN <= number < _SECONDS_END:
        return _EPOCH + timedelta(seconds=number)
    if _MILLISECONDS_MIN <= number < _MILLISECONDS_END:
        return _EPOCH + timedelta(milliseconds=number)
    choices = "seconds (ten digits) or milliseconds (thirteen) since 1970, or RFC 3339"
    raise ValueError(f"is {_show_number(value)}, whose unit is not clear; give {choices}")


def _show_number(value: str | float) -> str:
    if isinstance(value, str):
        return repr(value[:_SHOWN_MAX])
    return "a number far too large" if abs(value) >= _NUMBER_SHOWN_MAX else repr(value)


def ceil_ms(moment: float) -> int:
    """Give the first whole millisecond that is not before a moment; one that was made of milliseconds stays itself."""
    milliseconds = round(moment * 1000)  # the product alone may be a little above what it was made of
    return milliseconds if milliseconds / 1000 >= moment else milliseconds + 1


def floor_ms(moment: float) -> int:
    """Give the last whole millisecond that is not after a moment; one that was made of milliseconds stays itself."""
    milliseconds = round(moment * 1000)
    return milliseconds if milliseconds / 1000 <= moment else milliseconds - 1


def format_seconds(seconds: float) -> str:
    """Write a duration for people in at most two units: "0.4 s", "2 min 30 s", "3 h", "12 d 4 h"."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit, small, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            large, rest = divmod(seconds, size)
            return f"{large:.0f} {unit}" + (f" {rest // small:.0f} {small_unit}" if rest >= small else "")

    return f"{seconds:.0f} s"


def format_exact(epoch: float) -> str:
    """Write a moment for programs: RFC 3339 in UTC, to the millisecond."""
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_moment(epoch: float) -> str:
    """Write a moment for people, in UTC to the second."""
    return f"{datetime.fromtimestamp(epoch, UTC).isoformat(' ', 'seconds')[:19]} UTC"
