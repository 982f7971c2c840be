"""One visit: the requests from the payload's URL to its last redirect, and what became of them."""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import aiohttp
from yarl import URL

from activities.api.context import Context
from activities.api.outcome import Again, Message, Reject
from activities.handlers.http.decision import VisitResponse, decide, keep_validator
from activities.handlers.http.plan import VisitPlan, VisitRefused, read_plan
from activities.http.body import describe_unreadable, iterate_body
from activities.http.urls import read_redirect, show_url
from shared.errors import GiveUp, RetryLater

REDIRECTS_MAX = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
UNTIMED = aiohttp.ClientTimeout(total=None)  # the visit as a whole has its limit, and each timer costs
DIGEST_BYTES = 8  # compared only with the previous digest: an equal one by chance has the probability 2^-64


async def visit_and_decide(message: Message, ctx: Context) -> Again | Reject:
    """Do what the `http` handler promises."""
    limit_seconds = ctx.settings.http_timeout.total_seconds()
    try:
        plan = read_plan(message.payload)
        async with asyncio.timeout(limit_seconds):
            answer = await _visit(plan, ctx)
    except VisitRefused as exc:
        return Reject(str(exc))
    except GiveUp as exc:
        return Reject(f"payload.url: {exc}")
    except TimeoutError as exc:
        raise RetryLater(
            f"the visit took longer than {limit_seconds:g} s; raise DORMICE_HTTP_TIMEOUT if that is usual"
        ) from exc
    except (aiohttp.ClientError, OSError) as exc:
        raise RetryLater(f"no whole answer ({type(exc).__name__}: {exc}); it will be asked for again") from exc

    return decide(plan, answer, ctx)


async def _visit(plan: VisitPlan, ctx: Context) -> VisitResponse:
    url = plan.url
    for _ in range(REDIRECTS_MAX + 1):
        page = _digest(str(url).encode())
        headers = _request_headers(plan.seen, page)
        try:
            async with ctx.http.get(
                url, headers=headers, allow_redirects=False, auto_decompress=False, timeout=UNTIMED
            ) as response:
                if response.status not in REDIRECTS or "Location" not in response.headers:
                    return await _read_answer(response, page, ctx.settings.http_max_bytes)
        except GiveUp as exc:  # from the guard or the body's reader, which don't know the URL
            raise VisitRefused(f"payload.url: {show_url(url)}: {exc}") from exc
        except aiohttp.InvalidURL as exc:  # numbers that some programs take for an address
            raise VisitRefused(f"payload.url: {show_url(url)}: can't be read ({exc.description}); correct it") from exc
        except aiohttp.ClientResponseError as exc:  # only what can't be read is one here
            raise RetryLater(f"{show_url(url)} {describe_unreadable(exc)}") from exc

        url = _follow(url, response)

    shown = show_url(plan.url)
    raise VisitRefused(f"payload.url: {shown} redirects more than {REDIRECTS_MAX} times; give its last address")


def _follow(url: URL, response: aiohttp.ClientResponse) -> URL:
    target = read_redirect(response.headers["Location"], url)
    if target == url:
        remark = "and sets a cookie, which no visit sends" if "Set-Cookie" in response.headers else "as it is"
        raise RetryLater(f"{show_url(url)} redirects to itself {remark}; it will be asked again")

    return target


def _request_headers(seen: Mapping[str, Any], page: str) -> dict[str, str]:
    # only gzip: the size of its output is limited while it is decoded
    headers = {"Accept-Encoding": "gzip"}
    if seen.get("page") == page:
        for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified")):
            if validator := keep_validator(seen.get(key)):
                headers[name] = validator
    return headers


async def _read_answer(response: aiohttp.ClientResponse, page: str, max_bytes: int) -> VisitResponse:
    body = hashlib.blake2b(digest_size=DIGEST_BYTES)
    is_success = 200 <= response.status < 300
    if is_success:
        async with aclosing(iterate_body(response, max_bytes)) as pieces:
            async for piece in pieces:
                body.update(piece)

    digest = body.hexdigest() if is_success else ""
    asked_with = response.request_info.headers
    is_conditional = "If-None-Match" in asked_with or "If-Modified-Since" in asked_with
    return VisitResponse(
        status=response.status,
        headers=response.headers,
        page=page,
        digest=digest,
        is_conditional=is_conditional,
    )


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
