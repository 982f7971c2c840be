"""Local moments: days and times without an offset, which mean something once a person has named their zone."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Self
from zoneinfo import ZoneInfo

from shared.errors import InvalidSetting
from shared.messages.timespan import is_local

_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")
_DAY_LENGTH = 10


@dataclass(frozen=True, slots=True)
class LocalMoments:
    """The zone of moments that name no offset, and the time of day of those that are days alone; None: not said."""

    zone: ZoneInfo | None = None
    at: time | None = None

    @classmethod
    def read(cls, zone: str | None, at: str | None) -> Self:
        """Read --zone and --at as typed; raises InvalidSetting."""
        if at is not None and not _TIME.fullmatch(at):
            raise InvalidSetting(f"--at: is {at[:40]!r}, no time of day; write for example 09:00")
        if zone is None:
            if at is not None:
                raise InvalidSetting("--at: says nothing without a zone; add --zone, for example America/New_York")
            return cls()

        try:
            found = ZoneInfo(zone)
        except (LookupError, ValueError, OSError) as exc:
            raise InvalidSetting(f"--zone: is {zone[:60]!r}, no time zone; write for example America/New_York") from exc
        time_of_day = None if at is None else time.fromisoformat(at)
        return cls(found, time_of_day)

    def read_moment(self, value: Any) -> Any:
        """Give the moment of a day, or of a time without an offset; any other value as it is.

        Raises ValueError with half a sentence where nothing says the zone, or the clocks of the zone do not show the
        time exactly once.
        """
        if isinstance(value, str):
            text = value.strip()
            if not is_local(text):
                return value
            return self._to_moment(_parse(text), text)

        if not isinstance(value, date) or (isinstance(value, datetime) and value.tzinfo is not None):
            return value
        return self._to_moment(value, value.isoformat())

    def _to_moment(self, value: date, text: str) -> datetime:
        if not isinstance(value, datetime):
            value = self._add_time(value, text)
        if self.zone is None:
            raise ValueError(f"is {text!r}, which has no offset; add one, or name the zone of all rows with --zone")

        early, late = (value.replace(tzinfo=self.zone, fold=fold) for fold in (0, 1))
        # the first holds the offset before a change of the clocks, the second that after it
        before = early.utcoffset()
        after = late.utcoffset()
        if before is not None and after is not None and before != after:
            times = "twice" if before > after else "never"
            raise ValueError(f"is {text!r}, which clocks in {self.zone.key} show {times}; add an offset")
        try:
            return early.astimezone(UTC)
        except OverflowError as exc:
            raise ValueError(f"is {text!r}, outside the calendar; correct the date") from exc

    def _add_time(self, day: date, text: str) -> datetime:
        if self.at is None:
            remedy = "say when on that day, for example with --at 09:00 --zone America/New_York"
            raise ValueError(f"is {text!r}, a day alone; {remedy}")
        return datetime.combine(day, self.at)


def _parse(text: str) -> date:
    try:
        return date.fromisoformat(text) if len(text) == _DAY_LENGTH else datetime.fromisoformat(text.upper())
    except ValueError as exc:
        raise ValueError(f"is {text[:40]!r}, which no calendar has ({exc}); correct the date") from exc
