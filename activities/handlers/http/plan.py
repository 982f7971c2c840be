"""What a payload of the `http` kind asks for, and what earlier visits have stored in it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast

from yarl import URL

from activities.api.policies import Bounds, NutchRules
from activities.http.urls import read_url
from shared.errors import GiveUp
from shared.messages.timespan import HORIZON

START_INTERVAL = timedelta(days=1)  # StormCrawler's default; the shortest and longest are those of NutchRules
FRESH_MAX = timedelta(days=1)  # what a site may ask for, unless the payload has a longest interval
VALIDATORS = ("etag", "modified", "page")
DEFAULT_BOUNDS = NutchRules().bounds
RULES_MAX = 1000  # rules that are kept, because most messages have the same
SEEN = (*VALIDATORS, "digest", "interval", "changed")


class VisitRefused(GiveUp):
    """A payload, a redirect or an answer that further attempts can't mend."""


@dataclass(frozen=True, slots=True)
class VisitPlan:
    """What a payload asks for; `seen` is what earlier visits stored there, see `visit_and_decide`."""

    payload: Mapping[str, Any]
    url: URL
    interval: timedelta
    rules: NutchRules
    fresh_max: timedelta
    seen: Mapping[str, Any]


def read_plan(payload: Any) -> VisitPlan:
    """Read a payload; raises GiveUp with its flaw."""
    given = _read_object(payload)
    kept = _read_object(given.get("seen"))
    seen = {key: kept[key] for key in SEEN if isinstance(kept.get(key), str | int | float)}

    rules = _make_rules(*_read_bounds(given))
    interval = _read_seconds(given, "interval") or START_INTERVAL
    if _is_seconds(seen.get("interval")):
        interval = timedelta(seconds=seen["interval"])

    if not isinstance(given.get("url"), str):
        raise VisitRefused("payload.url: is missing; give the http or https address to visit, as a string")

    return VisitPlan(
        payload=given,
        url=read_url(given["url"]),
        interval=rules.bounds.clamp(interval),
        rules=rules,
        fresh_max=_read_seconds(given, "max") or FRESH_MAX,
        seen=seen,
    )


def to_number(interval: timedelta) -> float:
    """Give an interval in seconds, as payloads keep it."""
    seconds = round(interval.total_seconds(), 3)
    return int(seconds) if seconds.is_integer() else seconds


def _read_object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _read_bounds(given: Mapping[str, Any]) -> tuple[timedelta, timedelta]:
    shortest = _read_seconds(given, "min")
    longest = _read_seconds(given, "max")
    if shortest and longest and shortest > longest:
        raise VisitRefused(f"payload.min: is more than payload.max, {to_number(longest)} s; make it smaller")

    return (
        shortest or min(DEFAULT_BOUNDS.shortest, longest or DEFAULT_BOUNDS.shortest),
        longest or max(DEFAULT_BOUNDS.longest, shortest or DEFAULT_BOUNDS.longest),
    )


@lru_cache(maxsize=RULES_MAX)
def _make_rules(shortest: timedelta, longest: timedelta) -> NutchRules:
    return NutchRules(bounds=Bounds(shortest, longest))


def _read_seconds(given: Mapping[str, Any], name: str) -> timedelta | None:
    value = given.get(name)
    if value is None:
        return None

    if not _is_seconds(value):
        maximum = HORIZON.total_seconds()
        raise VisitRefused(f"payload.{name}: is {str(value)[:40]!r}; give seconds from 1 to {maximum:.0f}")

    return timedelta(seconds=value)


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 1 <= value <= HORIZON.total_seconds()
