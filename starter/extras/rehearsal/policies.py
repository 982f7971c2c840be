"""Policies of a rehearsal: the revisit policies as a command line names them, and what each visit tells them."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, cast

from activities.api.policies import Bounds, NutchRules, nutch_adaptive
from shared.errors import InvalidSetting
from shared.messages.timespan import HORIZON, parse_duration

MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST = timedelta(seconds=1)  # as the decision raises shorter delays
ADAPTIVE_OPTIONS = ("start", "min", "max", "increase", "decrease")
START_INTERVAL = timedelta(days=1)
"""The interval before the first visit, that of the handler `http`."""


@dataclass(slots=True)
class Visit:
    """What a policy learns at a visit. It is filled anew for each visit, so a policy keeps values, not the visit."""

    interval: timedelta
    """What the policy answered last."""
    is_changed: bool | None = None
    """Whether the page differs from our copy; None before the first visit, when there is nothing to compare."""
    visits: int = 0
    """How many visits there were, with this one."""
    changes: int = 0
    """How many of them found a change."""
    now: int = 0
    """The moment of the visit, in microseconds since 1970."""
    begin: int = 0
    """The beginning of the rehearsal, in microseconds since 1970."""
    last_found: int = 0
    """The moment of the visit that found a change last, else the beginning; in microseconds since 1970."""
    last_change: int | None = None
    """The moment of the latest change that was found, as a page's own date has it; in microseconds since 1970."""

    @property
    def at(self) -> datetime:
        """The moment of the visit, in UTC."""
        return to_datetime(self.now)

    @property
    def elapsed(self) -> timedelta:
        """The time since the beginning."""
        return timedelta(microseconds=self.now - self.begin)

    @property
    def unchanged_for(self) -> timedelta:
        """The time since the visit that found a change last, zero at that visit; else since the beginning."""
        return timedelta(microseconds=self.now - self.last_found)

    @property
    def changed_at(self) -> datetime | None:
        """The moment of the latest change that was found, in UTC."""
        return None if self.last_change is None else to_datetime(self.last_change)


def to_datetime(microseconds: int) -> datetime:
    """Give a moment as a datetime in UTC."""
    return EPOCH + timedelta(microseconds=microseconds)


def to_microseconds(moment: datetime) -> int:
    """Give a moment in microseconds since 1970, exactly."""
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class AdaptivePolicy(Protocol):
    """A policy whose interval follows from what the visits have shown."""

    def decide(self, visit: Visit) -> timedelta:
        """Give the interval until the next visit."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Visits every page at an interval of its own, which depends on nothing but its number of changes.

    `intervals` has microseconds by number of changes, None where a page is not visited; `default` is for all others.
    """

    default: int | None
    intervals: Mapping[int, int | None] | None = None

    def find_interval(self, changes: int) -> int | None:
        """Give the interval of a page with a number of changes in the whole period."""
        return self.default if self.intervals is None else self.intervals.get(changes, self.default)


@dataclass(frozen=True, slots=True)
class NutchPolicy:
    """The policy of the handler `http`, `nutch_adaptive`."""

    start: timedelta = START_INTERVAL
    rules: NutchRules = field(default_factory=NutchRules)

    def decide(self, visit: Visit) -> timedelta:
        """Shorten after a change, lengthen after none."""
        interval = self.start if visit.is_changed is None else visit.interval
        return nutch_adaptive(interval, is_changed=visit.is_changed, rules=self.rules)


class FunctionPolicy:
    """A function of the user that takes a visit and gives a timedelta; pickled by its name."""

    def __init__(self, place: str, path: Sequence[str] = ()) -> None:
        """Import MODULE:FUNCTION, also from the folders of `path`; raises InvalidSetting."""
        sys.path.extend(folder for folder in path if folder not in sys.path)
        self.place = place

        module, _, name = place.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), name, None)
        except Exception as exc:
            # a user's module raises what it likes when it is imported; the command ends with this sentence
            problem = f"module {module!r} can't be imported ({exc!r})"
            raise InvalidSetting(
                f"--policy: {place}: {problem}; give fixed:INTERVAL, adaptive, or MODULE:FUNCTION"
            ) from exc

        if not callable(found):
            raise InvalidSetting(f"--policy: {place}: module {module!r} has no function {name!r}; correct the name")
        self._function = cast("Callable[[Visit], Any]", found)

    def decide(self, visit: Visit) -> timedelta:
        """Ask the function; raises InvalidSetting when it fails or answers with something else."""
        try:
            interval = self._function(visit)
        except Exception as exc:
            # a user's function raises what it likes; the rehearsal ends with this sentence
            raise InvalidSetting(f"--policy: {self.place} raised {exc!r} for {visit}; correct it") from exc
        if not isinstance(interval, timedelta):
            raise InvalidSetting(f"--policy: {self.place} gave {interval!r:.100}; let it return a timedelta")
        return interval

    def __reduce__(self) -> tuple[type["FunctionPolicy"], tuple[str, tuple[str, ...]]]:
        """Pickle the name: a task of Spark imports the function itself, on this machine from the same folders."""
        return FunctionPolicy, (self.place, tuple(str(Path(folder).absolute()) for folder in sys.path))


Policy = FixedPolicy | AdaptivePolicy


def read_policy(text: str) -> Policy:
    """Read "fixed:6h", "adaptive", "adaptive:start=1h,min=5m" or "module:function"; raises InvalidSetting."""
    name, _, rest = text.partition(":")
    if name == "fixed":
        return FixedPolicy(_read_span(text, "INTERVAL", rest) // MICROSECOND)
    if name == "adaptive":
        return _read_adaptive(text, rest)
    if not name or not rest:
        raise InvalidSetting(f"--policy: there is none {text!r}; give fixed:INTERVAL, adaptive, or MODULE:FUNCTION")
    return FunctionPolicy(text)


def _read_adaptive(text: str, rest: str) -> NutchPolicy:
    options = {name: value for name, _, value in (part.partition("=") for part in rest.split(",") if part)}
    if unknown := next((name for name in options if name not in ADAPTIVE_OPTIONS), None):
        raise InvalidSetting(f"--policy: {text}: there is no {unknown!r}; give {', '.join(ADAPTIVE_OPTIONS)}")

    defaults = NutchRules()
    spans = {name: _read_span(text, name, options[name]) for name in ("start", "min", "max") if name in options}
    shares = {name: _read_share(text, name, options[name]) for name in ("increase", "decrease") if name in options}

    try:
        bounds = Bounds(spans.get("min", defaults.bounds.shortest), spans.get("max", defaults.bounds.longest))
        rules = NutchRules(**{"increase": defaults.increase, "decrease": defaults.decrease, **shares}, bounds=bounds)
    except InvalidSetting as exc:
        raise InvalidSetting(f"--policy: {text}: {exc}") from exc

    return NutchPolicy(spans.get("start", START_INTERVAL), rules)


def _read_span(text: str, name: str, value: str) -> timedelta:
    try:
        span = parse_duration(value)
    except ValueError as exc:
        raise InvalidSetting(f"--policy: {text}: {name} {exc}") from exc
    if not SHORTEST <= span <= HORIZON:
        raise InvalidSetting(f"--policy: {text}: {name} is {value}; give a time from 1 s to {HORIZON.days} d")
    return span


def _read_share(text: str, name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as exc:
        raise InvalidSetting(f"--policy: {text}: {name} is {value!r}; give a share, for example 0.4") from exc
