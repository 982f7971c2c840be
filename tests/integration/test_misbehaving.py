"""Handlers that misbehave: each hurts its own message only, and says so where people look."""

import asyncio
import functools
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities import Again, Context, Done, Message, RetryAfter, handler
from shared.signals import RunNow
from starter.control import Control
from starter.selection import Selection
from tests.conftest import Begin, Serve, wait_until
from tests.subjects import Subject
from workflows.options import BATCHES_MAX

MODES = {
    "raises": ("parked", "attempt 2 of 2: RuntimeError: on purpose"),
    "hangs": ("parked", "attempt 2 of 2: no outcome within 0.3 s"),
    "blocks": ("parked", "attempt 2 of 2: no outcome within 0.3 s"),
    "no outcome": ("parked", "the handler returned int 7; return Again, Done or Reject"),
    "forgets to return": ("parked", "the handler returned NoneType None; return Again, Done or Reject"),
    "oversize payload": ("parked", "the returned payload is 5002 bytes of JSON, the limit is 4096"),
    "payload that is no JSON": ("parked", "the returned payload holds a set, which JSON does not know"),
    "after and at": ("parked", "Again needs exactly one of after and at"),
    "naive moment": ("parked", "is no datetime with a time zone; add tzinfo=UTC"),
    "a number as delay": ("parked", "is no timedelta; write timedelta(hours=1)"),
    "unknown lane": ("parked", "names no lane; use one of short, medium, long"),
    "negative delay": ("active", "delay of -5 s raised to 1 s"),
    "ten thousand years": ("active", "delay of 3650000 d cut to 3653 d"),
    "retry after": ("active", "the other side asked for an hour"),
}


async def misbehave(message: Message, ctx: Context) -> Any:  # noqa: C901, PLR0912 — a table of modes
    """Do what the payload names."""
    match message.payload:
        case "raises":
            raise RuntimeError("on purpose\nsecond line")
        case "hangs":
            await asyncio.Event().wait()
        case "blocks":
            time.sleep(0.5)  # noqa: ASYNC251 — on purpose: it stops the event loop of its worker
            await asyncio.sleep(0.2)
        case "no outcome":
            return 7
        case "oversize payload":
            return Again(after=timedelta(hours=1), payload="x" * 5000)
        case "payload that is no JSON":
            return Again(after=timedelta(hours=1), payload={"a": {1}})
        case "after and at":
            return Again(after=timedelta(hours=1), at=datetime.now(UTC))
        case "naive moment":
            return Again(at=datetime(2026, 1, 1))  # noqa: DTZ001 — on purpose
        case "a number as delay":
            return Again(after=3600)  # pyright: ignore[reportArgumentType] — on purpose
        case "unknown lane":
            return Again(after=timedelta(hours=1), lane="express")
        case "negative delay":
            return Again(after=timedelta(seconds=-5))
        case "ten thousand years":
            return Again(after=timedelta(days=3_650_000))
        case "retry after":
            raise RetryAfter(timedelta(hours=1), "the other side asked for an hour")
        case "well":
            return Done()
        case _:
            pass
    return None


async def test_what_a_handler_does_wrong_parks_or_clamps_its_own_message_only(
    serve: Serve, begin: Begin, control: Control, kind: str
) -> None:
    """Each mode ends as documented, with the reason in `show` and the state in the index; a neighbour is unharmed."""
    declare = handler(kind, max_attempts=2, timeout=timedelta(milliseconds=300), backoff=timedelta(milliseconds=100))
    async with serve(declare(misbehave), lanes=("short",)):
        messages = {mode: await begin(kind, payload=mode) for mode in MODES}
        neighbour = await begin(kind, payload="well")
        assert (await neighbour.wait_ended())["state"] == "done"

        for mode, (state, reason) in MODES.items():
            shows = functools.partial(_shows, control, messages[mode], state, reason)
            await wait_until(shows, f"{mode}: {state}, {reason}")

        expected = {messages[mode].id for mode, (state, _) in MODES.items() if state == "parked"}
        parked = Selection(kind=kind, state="parked")
        await wait_until(lambda: _lists(control, parked, expected), "the index knows all that are parked")
        listed = [m async for m in control.list(parked, limit=3)]
        assert len(listed) == 3
        assert all(m.parked_reason and m.parked_at for m in listed)


async def _lists(control: Control, selection: Selection, ids: set[str]) -> bool:
    return {m.id async for m in control.list(selection)} == ids


async def _shows(control: Control, message: Subject, state: str, reason: str) -> bool:
    shown = await control.show(message.kind, message.id)
    if shown.status is None or shown.listed.state != state:
        return False
    reasons = [d["reason"] for d in shown.decisions]
    return any(reason in text for text in reasons) and (state != "parked" or reason in shown.listed.parked_reason)


@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_a_kind_without_a_handler_waits_instead_of_being_parked(
    serve: Serve, begin: Begin, kind: str, lane: str
) -> None:
    """A worker deployed without a handler loses nothing: the message says what is missing and goes on later."""

    @handler(kind)
    async def present(message: Message, ctx: Context) -> Done:
        return Done()

    async with serve():
        message = await begin(kind, lane=lane)

        async def is_waiting() -> bool:
            return f"no handler for kind '{kind}'" in (await message.status())["why"]

        await wait_until(is_waiting, "it says that its handler is missing")
    async with serve(present):
        await message.send(RunNow())

        assert (await message.wait_ended())["state"] == "done"


@pytest.mark.parametrize("encoding", ["pack"])  # what has a workflow of its own has nobody to wait for
async def test_those_who_take_long_on_a_longer_lane_delay_nobody_of_their_pack_on_a_shorter_one(
    serve: Serve, begin: Begin, kind: str
) -> None:
    """More than a pack runs on lane medium at once are at work or wait there; on lane short one falls due and runs."""
    at_work: list[str] = []
    gate = asyncio.Event()

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Done:
        if message.lane == "medium":
            at_work.append(message.id)
            await gate.wait()
        return Done()

    async with serve(work, lanes=("short", "medium")):
        first = await begin(kind)
        *names, quick = first.neighbours(BATCHES_MAX["medium"] + 2)
        slow: list[Subject] = []
        for number, name in enumerate(names, start=1):
            slow.append(await begin(kind, name, lane="medium"))
            await wait_until(lambda: len(at_work) >= min(number, BATCHES_MAX["medium"]), "it is at work")  # noqa: B023 — awaited here
        assert await (await begin(kind, quick, scheduled_at=datetime.now(UTC) + timedelta(seconds=1))).wait_ended()
        assert len(at_work) == BATCHES_MAX["medium"]
        gate.set()
        assert [(await message.wait_ended())["state"] for message in slow] == ["done"] * len(names)
