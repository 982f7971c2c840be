"""What the answer of a visit says is next, and what the payload keeps of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from activities.api.context import Context
from activities.api.outcome import UNCHANGED, Again, Reject, RetryAfter
from activities.api.policies import hold, nutch_adaptive, nutch_gone
from activities.handlers.host_gate import TRANSIENT, name_host_gate
from activities.handlers.http.plan import VALIDATORS, VisitPlan, to_number
from activities.http.freshness import freshness, read_retry_after
from activities.http.urls import show_url
from shared.errors import RetryLater
from shared.messages.json_value import encode_json
from shared.messages.timespan import format_seconds
from shared.settings import Settings

VALIDATOR_MAX_BYTES = 256
WORDS = {None: "first", True: "changed", False: "unchanged"}


@dataclass(frozen=True, slots=True)
class VisitResponse:
    """The last answer of a visit; `digest` is of a 2xx body, else empty; `page` stands for the URL it came from."""

    status: int
    headers: Mapping[str, str]
    page: str
    digest: str
    is_conditional: bool


def decide(plan: VisitPlan, answer: VisitResponse, ctx: Context) -> Again | Reject:
    """Give the outcome; raises RetryLater and RetryAfter for failed attempts."""
    status = answer.status
    if answer.digest or (status == 304 and answer.is_conditional and plan.seen.get("digest")):
        return _come_back(plan, answer, ctx)

    if status == 304:
        raise RetryLater("answered 304, not modified, though it was not asked by condition; it will be asked again")

    if status == 404:
        interval = nutch_gone(plan.interval, plan.rules)
        seen = {**plan.seen, "interval": to_number(interval)}
        return Again(after=interval, payload=_with_seen(plan, seen, ctx.settings), reason=f"gone, {status}")

    if status in (429, 503):
        _wait_if_asked(plan, answer, ctx)

    if status in TRANSIENT or status >= 500:
        raise RetryLater(f"answered {status}; it will be asked again")

    return Reject(f"payload.url: {show_url(plan.url)} answered {status}; correct it, or replay once the site is mended")


def keep_validator(value: Any) -> str:
    """Give a validator that can be sent back unchanged, or nothing; a validator only saves a body."""
    is_plain = isinstance(value, str) and value.isascii() and value.isprintable()
    return value if is_plain and len(value) <= VALIDATOR_MAX_BYTES else ""


def _wait_if_asked(plan: VisitPlan, answer: VisitResponse, ctx: Context) -> None:
    wait = read_retry_after(answer.headers.get("Retry-After", ""), ctx.started_at)
    if wait is None:
        return

    gate = name_host_gate(plan.url) if answer.status == 429 else ""  # a 503 may concern this page alone
    delay = plan.rules.bounds.clamp(wait)
    raise RetryAfter(delay, f"asked to wait, {answer.status}", gate=gate, gate_delay=min(wait, delay))


def _come_back(plan: VisitPlan, answer: VisitResponse, ctx: Context) -> Again:
    before = plan.seen.get("digest")
    bounds = plan.rules.bounds
    is_changed = answer.digest not in ("", before) if before else None
    interval = nutch_adaptive(plan.interval, is_changed=is_changed, rules=plan.rules)

    stated = freshness(answer.headers, ctx.started_at)
    fresh = min(stated, plan.fresh_max)
    delay = hold(interval, fresh, bounds)

    reason = f"{WORDS[is_changed]}, {answer.status}"
    if stated > fresh > interval:
        by_site, counted = (format_seconds(span.total_seconds()) for span in (stated, fresh))
        reason += f"; fresh for {by_site} by its own word, of which {counted} count"

    seen_at = ctx.started_at if is_changed is not False else None
    seen = _remember(plan.seen, answer, interval, seen_at)
    return Again(
        after=delay,
        # a page that is fresh, or was just seen, is not worth the idle capacity that pulls messages forward
        earliest=min(max(delay / 2, fresh, bounds.shortest), delay),
        payload=_with_seen(plan, seen, ctx.settings),
        reason=reason,
    )


def _remember(
    seen: Mapping[str, Any], answer: VisitResponse, interval: timedelta, changed: datetime | None
) -> dict[str, Any]:
    # a 304 may leave out what has not changed
    before: Mapping[str, Any] = seen if answer.status == 304 else {}
    etag = keep_validator(answer.headers.get("ETag", before.get("etag")))
    modified = keep_validator(answer.headers.get("Last-Modified", before.get("modified")))
    kept: dict[str, Any] = {
        "etag": etag,
        "modified": modified,
        "page": answer.page if etag or modified else "",
        "digest": answer.digest or seen["digest"],
        "interval": to_number(interval),
        "changed": int(changed.timestamp()) if changed else seen.get("changed"),
    }

    return {key: value for key, value in kept.items() if value}


def _with_seen(plan: VisitPlan, seen: Mapping[str, Any], settings: Settings) -> Any:
    """Give the payload for the next visit; what does not fit the payload limit is dropped, validators first."""
    if seen == plan.payload.get("seen"):
        return UNCHANGED  # a payload costs more than a visit: it is checked, sent and stored

    bare = {key: value for key, value in plan.payload.items() if key != "seen"}
    without_validators = {key: value for key, value in seen.items() if key not in VALIDATORS}
    candidates = ({**bare, "seen": dict(seen)}, {**bare, "seen": without_validators}, bare)
    return next((c for c in candidates if len(encode_json(c)) <= settings.payload_max_bytes), bare)
