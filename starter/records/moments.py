"""Moments and delays as other systems write them: seconds or milliseconds since 1970, HTTP dates, and spans."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from shared.messages.timespan import HORIZON
from starter.records.record import DeadRecord

DELAY_UNITS = {"milliseconds": timedelta(milliseconds=1), "seconds": timedelta(seconds=1)}

# by these bounds a number says its unit: both stand for the years 2001 to 2286
_SECONDS_LEAST, _SECONDS_END = 10**9, 10**10
_MILLISECONDS_LEAST, _MILLISECONDS_END = 10**12, 10**13

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_HTTP_DATE = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_TIMESTAMP_END = 10**14  # in the year 5138; Kafka's own producers refuse negative ones, and old records have -1
_SHOWN_MAX = 10**15


def read_moment(value: Any, field: str) -> Any:
    """Give RFC 3339 for a number, or digits, of seconds or milliseconds since 1970, and for an HTTP date.

    The magnitude says the unit: ten digits are seconds, thirteen are milliseconds. Any other value is returned as it
    is, for the envelope's own check. Raises DeadRecord for a number of neither, and for a date that no calendar has.
    """
    if isinstance(value, str):
        if _HTTP_DATE.fullmatch(text := value.strip()):
            return _read_http_date(text, field)
        if not _NUMBER.fullmatch(value):
            return value
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return _read_epoch(value, field).isoformat()


def read_delay(value: Any, unit: str, timestamp: int) -> str:
    """Give the moment, as RFC 3339, that is a delay after a record's timestamp, in milliseconds since 1970.

    The delay is a number, or digits, of a unit of DELAY_UNITS, up to ten years. Raises DeadRecord.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and value >= 0) and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise _flaw("delay", f"is {_show(value)}; give a number of {unit}, 0 or more")
    if (count := float(value) if isinstance(value, str) else value) > HORIZON / DELAY_UNITS[unit]:
        raise _flaw("delay", f"is {_show(value)} {unit}, more than ten years; correct it, or see --delay-unit")
    if not 0 <= timestamp < _TIMESTAMP_END:
        raise _flaw(
            "delay", f"counts from the record's timestamp, which is {timestamp}; produce records with a real one"
        )
    return (_EPOCH + timedelta(milliseconds=timestamp) + count * DELAY_UNITS[unit]).isoformat()


def read_epoch_seconds(text: str, field: str) -> datetime:
    """Read whole seconds since 1970, of ten digits; raises DeadRecord."""
    if not (text.isascii() and text.isdecimal()) or not _SECONDS_LEAST <= float(text) < _SECONDS_END:
        example = "for example 1795291200"
        raise _flaw(field, f"is {_show(text)}; give whole seconds since 1970, which have ten digits, {example}")
    return _EPOCH + timedelta(seconds=int(text))


def _read_epoch(value: str | float, field: str) -> datetime:
    number = float(value) if isinstance(value, str) else value
    if _SECONDS_LEAST <= number < _SECONDS_END:
        return _EPOCH + timedelta(seconds=number)
    if _MILLISECONDS_LEAST <= number < _MILLISECONDS_END:
        return _EPOCH + timedelta(milliseconds=number)
    choices = "seconds (ten digits) or milliseconds (thirteen) since 1970, or RFC 3339"
    raise _flaw(field, f"is {_show(value)}, whose unit is not clear; give {choices}")


def _read_http_date(text: str, field: str) -> str:
    try:
        return parsedate_to_datetime(text).isoformat()
    except ValueError as exc:
        raise _flaw(field, f"is {text!r}, which no calendar has ({exc}); correct the date") from exc


def _show(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "no number"
    return "a number far too large" if abs(value) >= _SHOWN_MAX else repr(value)


def _flaw(field: str, reason: str) -> DeadRecord:
    return DeadRecord("InvalidField", reason, field)
