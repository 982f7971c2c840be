"""The `http` handler: visits a URL again and again, as often as it changes, and keeps a digest instead of the body."""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import httpx

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Message, Reject, RetryAfter
from activities.api.policies import Bounds, NutchRules, hold, nutch_adaptive, nutch_gone
from activities.handlers.host_gate import TRANSIENT, find_host_gate, name_host_gate
from activities.http.address_guard import read_url, show_url
from activities.http.client import freshness, iterate_body, read_retry_after
from shared.errors import GiveUp, RetryLater
from shared.lanes import LANES
from shared.messages.json_value import encode_json
from shared.messages.timespan import HORIZON
from shared.settings import Settings

START_INTERVAL = timedelta(days=1)  # StormCrawler's default; the shortest and longest are those of NutchRules
REDIRECTS_MAX = 5
VALIDATOR_MAX_BYTES = 256
DIGEST_BYTES = 8  # compared only with the previous digest: an equal one by chance has the probability 2^-64
VALIDATORS = ("etag", "modified", "page")
WORDS = {None: "first", True: "changed", False: "unchanged"}
SEEN = (*VALIDATORS, "digest", "interval", "changed")
REDIRECTS = frozenset({301, 302, 303, 307, 308})


class VisitRefused(GiveUp):
    """A payload, a redirect or an answer that further attempts can't mend."""


@dataclass(frozen=True, slots=True)
class VisitPlan:
    """What a payload asks for; `seen` is what earlier visits stored there, see `http`."""

    payload: Mapping[str, Any]
    url: httpx.URL
    interval: timedelta
    rules: NutchRules
    seen: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VisitResponse:
    """The last answer of a visit; `digest` is of a 2xx body, else empty; `page` stands for the URL it came from."""

    status: int
    headers: httpx.Headers
    page: str
    digest: str


# the setting http_timeout ends a visit, so the handler declares the most that its lane allows
@handler("http", lane="short", timeout=LANES["short"].handler_timeout_max, gate=find_host_gate)
async def http(message: Message, ctx: Context) -> Again | Reject:
    """Visit a URL with a conditional GET and come back sooner when it changed, later when it did not.

    docs/handlers.md has the fields of its payload, and the outcome of each answer.
    """
    try:
        plan = _read_plan(message.payload)
        async with asyncio.timeout(ctx.settings.http_timeout.total_seconds()):
            answer = await _visit(plan, ctx)
    except VisitRefused as exc:
        return Reject(str(exc))
    except GiveUp as exc:
        return Reject(f"payload.url: {exc}")
    except (TimeoutError, httpx.TimeoutException) as exc:
        limit = f"{ctx.settings.http_timeout.total_seconds():g} s"
        raise RetryLater(f"the visit took longer than {limit}; raise DORMICE_HTTP_TIMEOUT if that is usual") from exc
    except (httpx.TransportError, UnicodeError) as exc:  # httpx parses the target of a redirect too, more strictly
        raise RetryLater(f"no whole answer ({type(exc).__name__}: {exc}); it will be asked for again") from exc
    return _decide(plan, answer, ctx)


def _read_plan(payload: Any) -> VisitPlan:
    given = _read_object(payload)
    kept = _read_object(given.get("seen"))
    seen = {key: kept[key] for key in SEEN if isinstance(kept.get(key), str | int | float)}
    rules = NutchRules(bounds=_read_bounds(given))
    interval = _read_seconds(given, "interval") or START_INTERVAL
    if _is_seconds(seen.get("interval")):
        interval = timedelta(seconds=seen["interval"])
    if not isinstance(given.get("url"), str):
        raise VisitRefused("payload.url: is missing; give the http or https address to visit, as a string")
    return VisitPlan(given, read_url(given["url"]), rules.bounds.clamp(interval), rules, seen)


def _read_object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _read_bounds(given: Mapping[str, Any]) -> Bounds:
    defaults = NutchRules().bounds
    shortest, longest = _read_seconds(given, "min"), _read_seconds(given, "max")
    if shortest and longest and shortest > longest:
        raise VisitRefused(f"payload.min: is more than payload.max, {_number(longest)} s; make it smaller")
    return Bounds(
        shortest or min(defaults.shortest, longest or defaults.shortest),
        longest or max(defaults.longest, shortest or defaults.longest),
    )


def _read_seconds(given: Mapping[str, Any], name: str) -> timedelta | None:
    value = given.get(name)
    if value is None:
        return None
    if not _is_seconds(value):
        most = HORIZON.total_seconds()
        raise VisitRefused(f"payload.{name}: is {str(value)[:40]!r}; give seconds from 1 to {most:.0f}")
    return timedelta(seconds=value)


def _is_seconds(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 1 <= value <= HORIZON.total_seconds()


async def _visit(plan: VisitPlan, ctx: Context) -> VisitResponse:
    url = plan.url
    for _ in range(REDIRECTS_MAX + 1):
        request = ctx.http.build_request("GET", url, headers=_request_headers(plan.seen, _digest(str(url).encode())))
        try:
            response = await ctx.http.send(request, stream=True, follow_redirects=False)
            async with aclosing(response):
                if response.status_code not in REDIRECTS or "location" not in response.headers:
                    return await _read_answer(response, ctx.settings.http_max_bytes)
        except GiveUp as exc:  # from the guard or the body's reader, which don't know the URL
            raise VisitRefused(f"payload.url: {show_url(url)}: {exc}") from exc
        url = read_url(response.headers["location"], base=url)
    shown = show_url(plan.url)
    raise VisitRefused(f"payload.url: {shown} redirects more than {REDIRECTS_MAX} times; give its last address")


def _request_headers(seen: Mapping[str, Any], page: str) -> dict[str, str]:
    # only gzip: the size of its output is limited while it is decoded
    headers = {"Accept-Encoding": "gzip"}
    if seen.get("page") == page:
        for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified")):
            if validator := _keep_validator(seen.get(key)):
                headers[name] = validator
    return headers


def _keep_validator(value: Any) -> str:
    """Give a validator that can be sent back unchanged, or nothing; a validator only saves a body."""
    is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return value if is_plain and len(value) <= VALIDATOR_MAX_BYTES else ""


async def _read_answer(response: httpx.Response, max_bytes: int) -> VisitResponse:
    body = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if response.is_success or response.status_code == 304:
        async with aclosing(iterate_body(response, max_bytes)) as pieces:
            async for piece in pieces:
                body.update(piece)
    digest = body.hexdigest() if response.is_success else ""
    return VisitResponse(response.status_code, response.headers, _digest(str(response.url).encode()), digest)


def _decide(plan: VisitPlan, answer: VisitResponse, ctx: Context) -> Again | Reject:
    status = answer.status
    if answer.digest or (status == 304 and plan.seen.get("digest")):
        return _come_back(plan, answer, ctx)
    if status == 404:
        interval = nutch_gone(plan.interval, plan.rules)
        seen = {**plan.seen, "interval": _number(interval)}
        return Again(after=interval, payload=_with_seen(plan, seen, ctx.settings), reason=f"gone, {status}")
    if status in (429, 503):
        wait = read_retry_after(answer.headers.get("retry-after", ""), ctx.started_at)
        if wait is not None:
            gate = name_host_gate(plan.url) if status == 429 else ""  # a 503 may concern this page alone
            delay = plan.rules.bounds.clamp(wait)
            raise RetryAfter(delay, f"asked to wait, {status}", gate=gate, gate_delay=min(wait, delay))
    if status in TRANSIENT or status >= 500:
        raise RetryLater(f"answered {status}; it will be asked again")
    return Reject(f"payload.url: {show_url(plan.url)} answered {status}; correct it, or replay once the site is mended")


def _come_back(plan: VisitPlan, answer: VisitResponse, ctx: Context) -> Again:
    before, bounds = plan.seen.get("digest"), plan.rules.bounds
    is_changed = answer.digest not in ("", before) if before else None
    interval = nutch_adaptive(plan.interval, is_changed=is_changed, rules=plan.rules)
    fresh = freshness(answer.headers, ctx.started_at)
    delay = hold(interval, fresh, bounds)
    seen = _remember(plan.seen, answer, interval, ctx.started_at if is_changed is not False else None)
    return Again(
        after=delay,
        # a page that is fresh, or was just seen, is not worth the idle capacity that pulls messages forward
        earliest=min(max(delay / 2, fresh, bounds.shortest), delay),
        payload=_with_seen(plan, seen, ctx.settings),
        reason=f"{WORDS[is_changed]}, {answer.status}",
    )


def _remember(
    seen: Mapping[str, Any], answer: VisitResponse, interval: timedelta, changed: datetime | None
) -> dict[str, Any]:
    # a 304 may leave out what has not changed
    before: Mapping[str, Any] = seen if answer.status == 304 else {}
    etag = _keep_validator(answer.headers.get("etag", before.get("etag")))
    modified = _keep_validator(answer.headers.get("last-modified", before.get("modified")))
    kept: dict[str, Any] = {
        "etag": etag,
        "modified": modified,
        "page": answer.page if etag or modified else "",
        "digest": answer.digest or seen["digest"],
        "interval": _number(interval),
        "changed": int(changed.timestamp()) if changed else seen.get("changed"),
    }
    return {key: value for key, value in kept.items() if value}


def _with_seen(plan: VisitPlan, seen: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Give the payload for the next visit; what does not fit the payload limit is dropped, validators first."""
    bare = {key: value for key, value in plan.payload.items() if key != "seen"}
    without_validators = {key: value for key, value in seen.items() if key not in VALIDATORS}
    candidates = ({**bare, "seen": dict(seen)}, {**bare, "seen": without_validators}, bare)
    return next((c for c in candidates if len(encode_json(c)) <= settings.payload_max_bytes), bare)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _number(interval: timedelta) -> float:
    seconds = round(interval.total_seconds(), 3)
    return int(seconds) if seconds.is_integer() else seconds
