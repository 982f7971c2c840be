"""The tutorial: what a message does, one concept per test."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from activities import Again, Context, Done, Message, Reject, handler
from shared.settings import Settings
from starter.control import Control
from tests.conftest import Serve, Start, wait_until


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings of a test, in the sandbox, which shows what workflow code must not do."""
    return replace(settings, sandbox=True)


async def test_a_message_comes_back_until_it_is_done(serve: Serve, start: Start) -> None:
    """The handler decides when to come back and when to end; each call sees the next version."""
    seen: list[int] = []

    @handler("counter")
    async def count(message: Message, ctx: Context) -> Again | Done:
        seen.append(message.version)
        return Done("enough") if message.version == 2 else Again(after=timedelta(seconds=1))

    async with serve(count):
        message = await start("counter")

        assert await message.result() == {"state": "done", "version": 3, "result": "enough"}
    assert seen == [0, 1, 2]


async def test_a_new_version_carries_the_payload_that_the_handler_returned(serve: Serve, start: Start) -> None:
    """`Again(payload=…)` is what the next cycle gets."""

    @handler("stairs")
    async def climb(message: Message, ctx: Context) -> Again | Done:
        step = message.payload["step"] + 1
        return Done(step) if step == 3 else Again(after=timedelta(seconds=1), payload={"step": step})

    async with serve(climb):
        message = await start("stairs", payload={"step": 0})

        assert (await message.result())["result"] == 3


async def test_a_rejected_message_is_parked_until_a_person_replays_it(
    serve: Serve, start: Start, control: Control, message_id: Callable[[], str]
) -> None:
    """`Reject` parks at once with its reason visible; `run_now` gives it another chance."""
    is_repaired = asyncio.Event()
    name = message_id()

    @handler("picky")
    async def judge(message: Message, ctx: Context) -> Reject | Done:
        return Done() if is_repaired.is_set() else Reject("it has no colour")

    async with serve(judge):
        message = await start("picky", name)
        await wait_until(lambda: _state_is(control, "picky", name, "parked"), "the message is parked")
        view = await control.show("picky", name)

        assert view.status is not None
        assert view.status["why"] == "parked: it has no colour"

        is_repaired.set()
        await control.run_now("picky", name)

        assert (await message.result())["state"] == "done"


async def test_a_failing_handler_is_retried_with_the_same_idempotency_key(serve: Serve, start: Start) -> None:
    """An exception is an attempt; the version and its key stay the same until a cycle is decided."""
    calls: list[tuple[int, str]] = []

    @handler("shaky", backoff=timedelta(milliseconds=100))
    async def shake(message: Message, ctx: Context) -> Done:
        calls.append((ctx.attempt, ctx.idempotency_key))
        if ctx.attempt < 3:
            raise ConnectionError("the other side hung up")
        return Done()

    async with serve(shake):
        message = await start("shaky")
        await message.result()

    assert calls == [(attempt, f"{message.id}:0") for attempt in (1, 2, 3)]


@pytest.mark.parametrize("lane", ["short", "medium", "long"])
async def test_every_lane_runs_the_same_handler(serve: Serve, start: Start, lane: str) -> None:
    """A lane changes how a cycle is run, not what it means."""

    @handler("tour")
    async def visit(message: Message, ctx: Context) -> Done:
        ctx.heartbeat()
        return Done(message.lane)

    async with serve(visit):
        message = await start("tour", lane=lane)

        assert (await message.result())["result"] == lane


async def _state_is(control: Control, kind: str, name: str, state: str) -> bool:
    status: dict[str, Any] | None = (await control.show(kind, name)).status
    return status is not None and status["state"] == state
