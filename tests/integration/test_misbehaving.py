"""Handlers that misbehave: each hurts its own message only, and says so where people look."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities import Again, Context, Done, Message, RetryAfter, handler
from starter.control import Control
from starter.selection import Selection
from tests.conftest import Serve, Start, wait_until

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


@handler("misbehaving", max_attempts=2, timeout=timedelta(milliseconds=300), backoff=timedelta(milliseconds=100))
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
            return Again(after=timedelta(seconds=-5)) if message.version == 0 else Again(after=timedelta(hours=1))
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
    serve: Serve, start: Start, control: Control
) -> None:
    """Each mode ends as documented, with the reason in `show` and the state in the index; a neighbour is unharmed."""
    async with serve(misbehave, lanes=("short",)):
        messages = {mode: await start("misbehaving", payload=mode) for mode in MODES}
        neighbour = await start("misbehaving", payload="well")
        assert (await neighbour.result())["state"] == "done"

        for mode, (state, reason) in MODES.items():
            _, _, name = messages[mode].id.partition(":")
            await wait_until(lambda: _shows(control, name, state, reason), f"{mode}: {state}, {reason}")  # noqa: B023

        parked = {f"{m.kind}:{m.id}" async for m in control.list(Selection(kind="misbehaving", state="parked"))}
        assert parked >= {m.id for mode, m in messages.items() if MODES[mode][0] == "parked"}
        listed = [m async for m in control.list(Selection(kind="misbehaving", state="parked"), limit=3)]
        assert all(m.parked_reason and m.parked_at for m in listed)


async def _shows(control: Control, name: str, state: str, reason: str) -> bool:
    shown = await control.show("misbehaving", name)
    if shown.status is None or shown.listed.state != state:
        return False
    reasons = [d["reason"] for d in shown.decisions]
    return any(reason in text for text in reasons) and (state != "parked" or reason in shown.listed.parked_reason)


@pytest.mark.parametrize("lane", ["short", "medium"])
async def test_a_kind_without_a_handler_waits_instead_of_being_parked(
    serve: Serve, start: Start, control: Control, lane: str
) -> None:
    """A worker deployed without a handler loses nothing: the message says what is missing and goes on later."""

    @handler("present")
    async def present(message: Message, ctx: Context) -> Done:
        return Done()

    async with serve(misbehave):
        message = await start("present", lane=lane)
        _, _, name = message.id.partition(":")

        async def is_waiting() -> bool:
            status = (await control.show("present", name)).status
            return status is not None and "no handler for kind 'present'" in status["why"]

        await wait_until(is_waiting, "it says that its handler is missing")
    async with serve(present):
        await control.run_now("present", name)

        assert (await message.result())["state"] == "done"
