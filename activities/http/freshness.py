"""Freshness: how long a site asks to be left alone, by the headers of its answers."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"([0-9]+)(?:\.([0-9]*))?")
SECONDS_MAX = 2**31  # RFC 9111 §1.2.2: a number of seconds too large to represent counts as 2^31


def freshness(headers: Mapping[str, str], now: datetime) -> timedelta:
    """Return how long an answer stays fresh by its own headers; zero when they don't say, or say that it is stale.

    s-maxage counts before max-age, and that before Expires - Date, less Age. Source: RFC 9111 §4.2 and §5.
    """
    directives = _read_directives(headers.get("Cache-Control", ""))
    if "no-store" in directives or directives.get("no-cache") == "":
        return timedelta(0)
    stated = directives.get("s-maxage", directives.get("max-age"))
    lifetime = None if stated is None else _read_seconds(stated)
    if stated is None and (expires := _read_http_date(headers.get("Expires", ""))) is not None:
        lifetime = expires - (_read_http_date(headers.get("Date", "")) or now)

    age = _read_seconds(headers.get("Age", "")) or timedelta(0)
    return max((lifetime or timedelta(0)) - age, timedelta(0))


def read_retry_after(value: str, now: datetime) -> timedelta | None:
    """Read Retry-After, seconds or a date; None if neither, zero for a past date. Source: RFC 9110 §10.2.3."""
    if (seconds := _read_seconds(value)) is not None:
        return seconds
    moment = _read_http_date(value)
    return None if moment is None else max(moment - now, timedelta(0))


def _read_directives(value: str) -> dict[str, str]:
    directives: dict[str, str] = {}
    for part in value.split(","):
        name, _, argument = part.partition("=")
        directives.setdefault(name.strip().lower(), argument.strip().strip('"'))
    return directives


def _read_seconds(value: str) -> timedelta | None:
    """Read a number of seconds; a fraction, which some rate limiters send, is rounded up."""
    found = _SECONDS.fullmatch(value.strip())
    if found is None:
        return None

    digits = found[1]
    fraction = found[2] or ""
    seconds = int(digits) if len(digits) <= 10 else SECONDS_MAX
    return timedelta(seconds=min(seconds + bool(fraction.strip("0")), SECONDS_MAX))


def _read_http_date(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
