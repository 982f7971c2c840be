"""What `activities.testing` gives authors of handlers: lives without a server that go as those on a server do."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from activities import Again, Context, Done, Message, Pack, Reject, RetryAfter, handler
from activities.handlers.echo import echo
from activities.handlers.http.handler import http
from activities.testing import BEGIN, EndlessLife, Life, live, make_context, make_message, open_site
from shared.errors import InvalidEnvelope
from shared.messages.decision import find_offset
from shared.messages.signals import Pause, Reschedule, Resume, Revise, RunNow, Stop

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


async def count_days(message: Message, ctx: Context) -> Again | Done:
    """Come back every day, three times."""
    if message.version == 3:
        return Done({"late": ctx.lateness.total_seconds(), "at": ctx.started_at.isoformat()})
    return Again(after=DAY, tolerance=HOUR, payload={"n": message.payload["n"] + 1}, reason="counted")


count_solo = handler("count")(count_days)
count_packed = handler("count-packed", encoding=Pack(packs=3, size=10))(count_days)


async def test_a_life_takes_the_time_that_its_handler_asks_for() -> None:
    """Each cycle begins when the message is due, and all clocks of the handler follow."""
    life = await live(count_solo, make_message(count_solo, {"n": 0}))
    step = DAY + find_offset("count:1", HOUR.total_seconds(), None) * SECOND

    assert [cycle.payload["n"] for cycle in life.cycles] == [0, 1, 2, 3]
    assert [cycle.outcome for cycle in life.cycles] == ["again", "again", "again", "done"]
    assert [abs(cycle.at - BEGIN - n * step) < SECOND for n, cycle in enumerate(life.cycles)] == [True] * 4
    assert [cycle.at for cycle in life.cycles[1:]] == [cycle.next_due_at for cycle in life.cycles[:-1]]
    assert (life.state, life.version, life.next_due_at) == ("done", 4, None)
    assert life.result == {"late": 0.0, "at": life.cycles[-1].at.isoformat()}
    assert [decision.what for decision in life.decisions] == ["started", "again", "again", "again", "done"]
    assert life.now == BEGIN + 30 * DAY


async def test_a_packed_message_lives_as_in_its_pack() -> None:
    """It is due at its pack's place in the tolerance, and runs when its pack would wake for it alone: never early."""
    life = await live(count_packed, make_message(count_packed, {"n": 0}))

    late = [cycle.at - cycle.due_at for cycle in life.cycles]
    assert late[0] == timedelta(0)
    assert all(2.5 * MINUTE <= wait <= 5 * MINUTE for wait in late[1:])
    assert life.result["late"] == late[-1].total_seconds()


@pytest.mark.parametrize("encoding", [None, Pack(packs=2, size=10)])
async def test_failures_and_waits_are_those_of_production(encoding: Pack | None) -> None:
    """Attempts with backoff up to parking; `RetryAfter` and what is no outcome too."""

    @handler("odd", max_attempts=3, backoff=MINUTE, encoding=encoding)
    async def odd(message: Message, ctx: Context) -> Any:
        match message.payload:
            case "raise":
                raise ValueError(f"attempt {ctx.attempt}")
            case "cancel":
                raise asyncio.CancelledError
            case "wait":
                raise RetryAfter(HOUR, "asked to")
            case "reject":
                return Reject("it is odd")
            case other:
                return other

    async def outcomes(payload: str) -> tuple[list[str], str]:
        life = await live(odd, make_message(odd, payload), until=3 * HOUR)
        return [cycle.outcome for cycle in life.cycles], life.parked_reason

    assert await outcomes("raise") == (["failed"] * 3, "attempt 3 of 3: ValueError: attempt 3")
    assert await outcomes("cancel") == (["failed"] * 3, "attempt 3 of 3: CancelledError")
    assert await outcomes("wait") == (["retry_after"] * 4, "")
    assert await outcomes("reject") == (["reject"], "it is odd")
    assert (await outcomes("else"))[1].startswith("the handler returned str 'else'; return Again")


async def test_a_handler_is_cut_off_at_its_timeout() -> None:
    """This takes real time, so a test declares a short one."""

    @handler("slow", timeout=timedelta(milliseconds=5), max_attempts=1)
    async def slow(message: Message, ctx: Context) -> Done:
        await asyncio.Event().wait()
        return Done()

    life = await live(slow, make_message(slow))

    assert life.parked_reason == "attempt 1 of 1: no outcome within 0.005 s"


async def test_a_closed_gate_holds_its_message() -> None:
    """`RetryAfter(gate=…)` closes it for the delay; the looks at it are cycles without a call."""
    calls = Counter[int]()

    @handler("gated", gate="host:example.org")
    async def ask(message: Message, ctx: Context) -> Done:
        calls[ctx.attempt] += 1
        if sum(calls.values()) == 1:
            raise RetryAfter(MINUTE, "busy", gate="host:example.org", gate_delay=HOUR)
        return Done()

    life = await live(ask, make_message(ask))

    assert life.state == "done"
    assert sum(calls.values()) == 2
    assert {cycle.outcome for cycle in life.cycles[1:-1]} == {"gated"}
    assert life.cycles[-1].at >= BEGIN + HOUR


async def test_signals_come_at_their_time() -> None:
    """Before what is due later, after what is due by then; and a life can be looked at in between."""
    hourly = make_message(echo, {"delay": 3600, "tolerance": 0})
    stopped = await live(echo, hourly, signals={timedelta(hours=2.5): Stop("enough")})
    life = Life(echo, hourly)
    await life.run(HOUR)
    life.signal(Pause())
    await life.run(DAY)
    paused = (life.state, len(life.cycles), life.next_due_at)
    life.signal(Revise({"cycles": 3}))
    life.signal(Resume())
    life.signal(Reschedule((BEGIN + 2 * DAY).isoformat()))
    await life.run(3 * DAY)

    assert (stopped.state, len(stopped.cycles), stopped.decisions[-1].reason) == ("stopped", 3, "enough")
    assert paused == ("paused", 2, None)
    assert (life.state, life.cycles[-1].at) == ("done", BEGIN + 2 * DAY)
    assert [decision.what for decision in life.decisions][3:] == ["pause", "revise", "resume", "reschedule", "done"]


async def test_a_parked_message_can_be_replayed() -> None:
    """As a person would, once what was wrong is repaired."""
    life = await live(echo, make_message(echo, {"fail": "reject"}))
    life.signal(Revise({"cycles": 1}))
    life.signal(RunNow("repaired"))
    await life.run(31 * DAY)

    assert [cycle.state for cycle in life.cycles] == ["parked", "done"]


async def test_an_endless_life_ends_with_a_sentence() -> None:
    """A delay of a second would have millions of cycles in a month."""
    with pytest.raises(EndlessLife, match=r"echo:1: 50 cycles have ended by 2026-01-01 00:00:49 UTC; let its handler"):
        await live(echo, make_message(echo, {"delay": 0, "tolerance": 0}), cycles_max=50)


async def test_a_payload_travels_as_json() -> None:
    """A handler that changes it in place changes nothing, and what is no JSON is refused at once."""

    @handler("vandal")
    async def vandal(message: Message, ctx: Context) -> Again | Done:
        message.payload.clear()
        return Done() if message.version else Again(after=HOUR)

    life = await live(vandal, make_message(vandal, {"a": 1}))

    assert [cycle.payload for cycle in life.cycles] == [{"a": 1}] * 2
    with pytest.raises(InvalidEnvelope, match="payload: holds a datetime, which JSON does not know; give plain JSON"):
        Life(vandal, make_message(vandal, {"at": BEGIN}))


async def test_a_typed_payload_may_be_given_as_json_or_as_its_model() -> None:
    """What is stored is JSON in both cases, and the handler gets its model."""

    @dataclass
    class Order:
        looks: int = 0

    @handler("typed", payload=Order)
    async def look(message: Message, ctx: Context) -> Again | Done:
        order: Order = message.payload
        return Done(order.looks) if order.looks == 2 else Again(after=DAY, payload=Order(order.looks + 1))

    payloads: list[Any] = [{}, Order()]
    lives = [await live(look, make_message(look, payload)) for payload in payloads]

    assert [life.result for life in lives] == [2, 2]
    assert [cycle.payload for cycle in lives[1].cycles] == [{"looks": n} for n in range(3)]


async def test_a_context_has_all_defaults() -> None:
    """Of the message where there is one; and no test reaches a network by accident."""
    message = make_message(echo, id="a", version=7)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    ctx = make_context(message, attempt=2, due_at=at, started_at=at + MINUTE)

    assert (ctx.attempt, ctx.idempotency_key, ctx.lateness) == (2, "echo:a:7", MINUTE)
    assert make_context().lateness == timedelta(0)
    ctx.heartbeat()
    with pytest.raises(aiohttp.ClientConnectionError, match=r"no site answers in this test; give http="):
        await ctx.http.get("https://example.org")


@asynccontextmanager
async def _site(*statuses: int) -> AsyncGenerator[tuple[aiohttp.ClientSession, list[web.BaseRequest]]]:
    requests: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        requests.append(request)
        status = statuses[min(len(requests), len(statuses)) - 1]
        headers = {"ETag": '"1"', "Retry-After": "7200"}
        return web.Response(status=status, body=b"" if status == 304 else b"page", headers=headers)

    async with open_site(answer) as session:
        yield session, requests


def _outcomes(life: Life) -> list[str]:
    return [cycle.reason for cycle in life.cycles if cycle.outcome != "gated"]


async def test_the_http_handler_lives_through_a_month_of_a_site() -> None:
    """First, unchanged with its validator, asked to wait, away for a while, gone."""
    async with _site(200, 304, 429, 304, 503, 404, 410) as (session, requests):
        life = await live(http, make_message(http, {"url": "https://example.org/"}), http=session)

    assert _outcomes(life)[:6] == [
        *("first, 200", "unchanged, 304", "asked to wait, 429", "unchanged, 304", "asked to wait, 503", "gone, 404")
    ]
    assert [request.headers.get("If-None-Match") for request in requests[:2]] == [None, '"1"']
    assert life.state == "parked"
    assert life.parked_reason.endswith("answered 410; correct it, or replay once the site is mended")
