"""Moments that only records have: delays that count from their timestamps, and the epochs of schedules."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.messages.timespan import HORIZON
from starter.records.record import DeadRecord

DELAY_UNITS = {"milliseconds": timedelta(milliseconds=1), "seconds": timedelta(seconds=1)}

# the years 2001 to 2286
_SECONDS_MIN = 10**9
_SECONDS_END = 10**10

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_TIMESTAMP_END = 10**14  # in the year 5138; Kafka's own producers refuse negative ones, and old records have -1
_SHOWN_MAX = 10**15


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
    if not (text.isascii() and text.isdecimal()) or not _SECONDS_MIN <= float(text) < _SECONDS_END:
        example = "for example 1795291200"
        raise _flaw(field, f"is {_show(text)}; give whole seconds since 1970, which have ten digits, {example}")
    return _EPOCH + timedelta(seconds=int(text))


def _show(value: Any) -> str:
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "no number"
    return "a number far too large" if abs(value) >= _SHOWN_MAX else repr(value)


def _flaw(field: str, reason: str) -> DeadRecord:
    return DeadRecord("InvalidField", reason, field)
