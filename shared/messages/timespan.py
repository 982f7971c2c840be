"""Durations and moments as people write them: "90s", "15m", "6h", "2d"; RFC 3339 or "+15m" for moments."""

import re
from datetime import UTC, datetime, timedelta

HORIZON = timedelta(days=3653)  # ten years; a time further ahead is most likely a wrong unit
MOMENT_MAX = 7_258_118_400.0  # the year 2200; Temporal's server counts nanoseconds since 1970, which end in 2262

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
_NEGATIVE = re.compile(f"-(?:{_DURATION.pattern})+$", re.ASCII)


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
    """Read a moment: "now", "+15m" from now on, or RFC 3339 with an offset."""
    now = now or datetime.now(UTC)
    try:
        if text == "now":
            return now
        if text.startswith("+"):
            return now + parse_duration(text[1:])
        moment = datetime.fromisoformat(text.upper())
        in_utc = moment.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"is {text!r}, no moment; write 2026-11-21T20:00:00Z, +15m or now") from exc
    if moment.tzinfo is None:
        raise ValueError(f"is {text!r}, which has no offset; add one, for example Z")
    return in_utc


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
