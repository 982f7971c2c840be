"""The `webhook` handler: posts a message to a URL, and does what the answer says."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import httpx

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter
from activities.handlers.host_gate import TRANSIENT, find_host_gate, name_host_gate
from activities.handlers.webhook.answer import Pause, WebhookAnswer, read_answer
from activities.handlers.webhook.request import (
    PayloadRefused,
    WebhookPlan,
    read_plan,
    write_body,
    write_headers,
)
from activities.http.address_guard import show_url
from activities.http.client import BodyTooLarge, iterate_body, read_retry_after
from shared.errors import GiveUp, InvalidSetting, RetryLater
from shared.lanes import LANES

KEY_DELAY = timedelta(minutes=1)  # a key that can't be read is the installation's fault: the message waits
GATE_MAX = timedelta(days=1)  # longest time that one answer stops all messages of a host

# some two hours in all, which a receiver may take to come back
ATTEMPTS, BACKOFF = 12, timedelta(seconds=5)


@handler("webhook", lane="short", max_attempts=ATTEMPTS, backoff=BACKOFF, gate=find_host_gate)
async def webhook(message: Message, ctx: Context) -> Again | Done | Reject:
    """Post the message to a URL and do what the answer says: again, done, reject or retry later.

    docs/webhook.md has the fields of the payload, the request, and the outcome of each answer.
    """
    try:
        plan = read_plan(message.payload)
    except PayloadRefused as exc:
        return Reject(str(exc))
    limit = ctx.settings.http_timeout if message.lane == "short" else LANES[message.lane].handler_timeout
    try:
        async with asyncio.timeout(limit.total_seconds()):
            answer = await _post(plan, message, ctx, limit)
    except InvalidSetting as exc:
        raise RetryAfter(KEY_DELAY, str(exc)) from exc
    except GiveUp as exc:  # from the guard, which does not know the URL
        return Reject(f"payload.url: {show_url(plan.url)}: {exc}")
    except (TimeoutError, httpx.TimeoutException) as exc:
        raise RetryLater(f"no answer within {limit.total_seconds():g} s; {_advise(message.lane)}") from exc
    except httpx.TransportError as exc:
        raise RetryLater(f"no whole answer ({type(exc).__name__}: {exc}); it will be posted again") from exc
    return _decide(plan, answer, message, ctx)


def _advise(lane: str) -> str:
    return "answer sooner, raise DORMICE_HTTP_TIMEOUT, or use the lane medium" if lane == "short" else "answer sooner"


async def _post(plan: WebhookPlan, message: Message, ctx: Context, limit: timedelta) -> WebhookAnswer:
    body = write_body(plan, message, ctx)
    request = ctx.http.build_request(
        "POST",
        plan.url,
        content=body,
        headers=write_headers(plan, message, ctx, body),
        timeout=httpx.Timeout(limit.total_seconds(), connect=ctx.settings.http_timeout.total_seconds()),
    )
    response = await ctx.http.send(request, stream=True, follow_redirects=False)
    async with aclosing(response):
        return WebhookAnswer(response.status_code, dict(response.headers), await _read_body(response, ctx))


async def _read_body(response: httpx.Response, ctx: Context) -> bytes:
    body = bytearray()
    try:
        async with aclosing(iterate_body(response, ctx.settings.http_max_bytes)) as pieces:
            async for piece in pieces:
                body += piece
    except BodyTooLarge as exc:
        if response.is_success:
            raise RetryLater(f"answer: {exc}") from exc
        return b""  # the page of some proxy
    return bytes(body)


def _decide(plan: WebhookPlan, answer: WebhookAnswer, message: Message, ctx: Context) -> Again | Done | Reject:
    status = answer.status
    said = read_answer(answer, message.payload, ctx.settings.payload_max_bytes, is_strict=plan.is_strict)
    if said is None:
        said = _read_status(plan, answer, ctx)
    if isinstance(said, Pause):
        gate = name_host_gate(plan.url) if status == 429 else ""  # any other may concern this message alone
        raise RetryAfter(said.delay, f"asked to wait, {status}", gate=gate, gate_delay=min(said.delay, GATE_MAX))
    return said


def _read_status(plan: WebhookPlan, answer: WebhookAnswer, ctx: Context) -> Reject | Pause:
    """Decide by the status alone; raises RetryLater for a failed attempt."""
    status = answer.status
    if status in TRANSIENT or status >= 500:
        wait = read_retry_after(answer.headers.get("retry-after", ""), ctx.started_at)
        if wait is None:
            raise RetryLater(f"answered {status}; it will be posted again")
        return Pause(wait)
    shown = show_url(plan.url)
    if httpx.codes.is_redirect(status):
        return Reject(f"payload.url: {shown} answered {status}; redirects are not followed, so give the last address")
    return Reject(f"payload.url: {shown} answered {status}; correct it, or replay once the receiver is mended")
