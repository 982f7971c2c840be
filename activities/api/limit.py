"""Limits as a handler declares them: how many calls may begin in a period, or be at work at once, for each key."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from activities.api.outcome import Message
from shared.errors import InvalidHandler, InvalidOutcome
from shared.keepers.limits import LEASE_MARGIN_SECONDS, Pace, check_key
from shared.messages.timespan import format_seconds

CALLS_MAX = 1_000_000
PERIOD_MAX = timedelta(days=31)
AT_ONCE_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Calls of handlers whose limits have the same key share it; a key of None or "" has none.

    `key` is a function of the message, or a string for all messages of the kind. `at_once` is how many of the key's
    calls may be at work at the same time, `per` how many may begin in a period, such as `(60, timedelta(minutes=1))`.
    All worker processes share the count; with `is_per_process` each has its own, of `at_once` alone, which asks nobody,
    and 0 stands for the setting `http_at_once`.
    Raises InvalidHandler when a value is unusable.
    """

    key: str | Callable[[Message], str | None]
    at_once: int | None = None
    per: tuple[int, timedelta] | None = None
    is_per_process: bool = False

    def __post_init__(self) -> None:
        if self.at_once is None and self.per is None:
            raise InvalidHandler("Limit: limits nothing; give at_once, per or both")
        if self.is_per_process and self.per is not None:
            raise InvalidHandler("Limit: per can't be counted by each process alone; give at_once alone")

        minimum = 0 if self.is_per_process else 1
        if self.at_once is not None and not minimum <= self.at_once <= AT_ONCE_MAX:
            raise InvalidHandler(f"Limit: at_once is {self.at_once}; give 1 to {AT_ONCE_MAX}")

        if self.per is not None and not (1 <= self.per[0] <= CALLS_MAX and timedelta(0) < self.per[1] <= PERIOD_MAX):
            raise InvalidHandler(
                f"Limit: per is {self.per[0]} calls in {self.per[1]}; give 1 to {CALLS_MAX} calls, in at most "
                f"{PERIOD_MAX.days} days"
            )

        if isinstance(self.key, str):
            try:
                check_key(self.key)
            except ValueError as exc:
                raise InvalidHandler(f"Limit: key {exc}") from exc

    def key_of(self, message: Message) -> str:
        """Give the key of a message, or "" if it has no limit. Raises InvalidOutcome for an invalid key."""
        key = self.key(message) if callable(self.key) else self.key
        if key is None or key == "":
            return ""

        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] — what an author's function returns
            raise InvalidOutcome(f"Limit(key) gave {type(key).__name__}, which is no string; give for example a name")
        try:
            return check_key(key)
        except ValueError as exc:
            raise InvalidOutcome(f"Limit(key): {exc}") from exc

    @property
    def period(self) -> float:
        """The period in seconds; 0 if only the number at once is limited."""
        return self.per[1].total_seconds() if self.per else 0.0

    def pace(self, timeout: timedelta, default: int) -> Pace:
        """Give the numbers that travel, for calls that may take as long as `timeout`; `default` for no number."""
        lease = timeout.total_seconds() + LEASE_MARGIN_SECONDS
        at_once = self.at_once or (default if self.is_per_process else 0)
        count = self.per[0] if self.per else 0
        return Pace.of(count, self.period, at_once, lease)

    @property
    def summary(self) -> str:
        """The limit in words, for `dormice handlers`."""
        rate = f"{self.per[0]} in {format_seconds(self.period)}" if self.per else ""
        if self.is_per_process:
            return f"{self.at_once or 'http_at_once'} at once in a process"
        return ", ".join(filter(None, (rate, f"{self.at_once} at once" if self.at_once else "")))
