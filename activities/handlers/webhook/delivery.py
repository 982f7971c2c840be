"""One delivery: the request, its answer, and what that says is next."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import aiohttp

from activities.api.context import Context
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter
from activities.handlers.host_gate import TRANSIENT, name_host_gate
from activities.handlers.webhook.answer import Pause, WebhookAnswer, read_answer
from activities.handlers.webhook.request import (
    PayloadRefused,
    WebhookPlan,
    read_plan,
    write_body,
    write_headers,
)
from activities.http.body import BodyTooLarge, describe_unreadable, iterate_body
from activities.http.freshness import read_retry_after
from activities.http.urls import show_url
from shared.errors import GiveUp, InvalidSetting, RetryLater
from shared.lanes import LANES

KEY_DELAY = timedelta(minutes=1)  # a key that can't be read is the installation's fault: the message waits
GATE_MAX = timedelta(days=1)  # longest time that one answer stops all messages of a host


async def post_and_decide(message: Message, ctx: Context) -> Again | Done | Reject:
    """Do what the `webhook` handler promises."""
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
    except aiohttp.InvalidURL as exc:  # numbers that some programs take for an address
        return Reject(f"payload.url: {show_url(plan.url)}: can't be read ({exc.description}); correct it")
    except TimeoutError as exc:
        raise RetryLater(f"no answer within {limit.total_seconds():g} s; {_advise(message.lane)}") from exc
    except aiohttp.ClientResponseError as exc:  # only what can't be read is one here; it names the URL with its keys
        raise RetryLater(f"{show_url(plan.url)} {describe_unreadable(exc)}") from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise RetryLater(f"no whole answer ({type(exc).__name__}: {exc}); it will be posted again") from exc

    return _decide(plan, answer, message, ctx)


def _advise(lane: str) -> str:
    return "answer sooner, raise DORMICE_HTTP_TIMEOUT, or use the lane medium" if lane == "short" else "answer sooner"


async def _post(plan: WebhookPlan, message: Message, ctx: Context, limit: timedelta) -> WebhookAnswer:
    body = write_body(plan, message, ctx)
    posting = ctx.http.post(
        plan.url,
        data=body,
        headers=write_headers(plan, message, ctx, body),
        timeout=aiohttp.ClientTimeout(total=limit.total_seconds(), connect=ctx.settings.http_timeout.total_seconds()),
        allow_redirects=False,
        auto_decompress=False,
    )
    async with posting as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return WebhookAnswer(response.status, headers, await _read_body(response, ctx))


async def _read_body(response: aiohttp.ClientResponse, ctx: Context) -> bytes:
    body = bytearray()
    try:
        async with aclosing(iterate_body(response, ctx.settings.http_max_bytes)) as pieces:
            async for piece in pieces:
                body += piece
    except BodyTooLarge as exc:
        if 200 <= response.status < 300:
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
    if 300 <= status < 400:
        return Reject(f"payload.url: {shown} answered {status}; redirects are not followed, so give the last address")

    return Reject(f"payload.url: {shown} answered {status}; correct it, or replay once the receiver is mended")
