"""Handlers that misbehave: each hurts its own message only, and says so where people look."""

import asyncio
import contextlib
import functools
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Done, Message, RetryAfter, handler
from shared.lanes import task_queue
from shared.messages.message import MessageState
from shared.messages.signals import RunNow
from shared.settings import Settings
from starter.control import Control
from starter.steering.selection import Selection
from tests.conftest import Begin, Serve, wait_until
from tests.support.asleep import start_asleep
from tests.support.subjects import Subject

MODES = {
    "raises": ("parked", "attempt 2 of 2: RuntimeError: on purpose"),
    "hangs": ("parked", "attempt 2 of 2: no outcome within 1 s"),
    "blocks": ("parked", "attempt 2 of 2: no outcome within 1 s"),
    "lets a cancellation out": ("parked", "attempt 2 of 2: CancelledError"),
    "cancels itself": ("parked", "attempt 2 of 2: CancelledError"),
    "cancels itself and returns": ("active", "all the same"),
    "exits": ("parked", "attempt 2 of 2: SystemExit: 1"),
    "interrupts": ("parked", "attempt 2 of 2: KeyboardInterrupt"),
    "raises what has no text": ("parked", "attempt 2 of 2: Unspeakable: its text can't be had (SystemExit)"),
    "raises what is no UTF-8": ("parked", "attempt 2 of 2: RuntimeError: ?"),
    "closes the HTTP client": ("active", "it is open"),
    "has no gate to name": ("parked", "attempt 2 of 2: LookupError: on purpose"),
    "can't be shown": ("parked", "attempt 2 of 2: SystemExit: not even its text"),
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


class Unspeakable(BaseException):
    """Ends whoever wants to read it."""

    def __str__(self) -> str:
        """End the process."""
        raise SystemExit("not even its text")

    __repr__ = __str__


def find_gate(message: Message) -> str:
    """Fail for one of the modes; the others need no gate."""
    if message.payload == "has no gate to name":
        raise LookupError("on purpose")
    return ""


async def misbehave(message: Message, ctx: Context) -> Any:  # noqa: C901, PLR0912 — a table of modes
    """Do what the payload names."""
    match message.payload:
        case "raises":
            raise RuntimeError("on purpose\nsecond line")
        case "hangs":
            await asyncio.Event().wait()
        case "blocks":
            time.sleep(1.5)  # noqa: ASYNC251 — on purpose: it stops the event loop of its worker
            await asyncio.sleep(0.2)
        case "lets a cancellation out":
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        case "cancels itself":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(60)
        case "cancels itself and returns":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return Again(after=timedelta(hours=1), reason="all the same")
        case "exits":
            sys.exit(1)
        case "interrupts":
            raise KeyboardInterrupt
        case "raises what has no text":
            raise Unspeakable
        case "raises what is no UTF-8":
            raise RuntimeError("\ud800")
        case "closes the HTTP client":
            async with ctx.http:
                await ctx.http.close()
            return Again(after=timedelta(hours=1), reason="it is closed" if ctx.http.closed else "it is open")
        case "can't be shown":
            return Unspeakable()
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
    timeout = timedelta(seconds=1)
    backoff = timedelta(milliseconds=100)
    declare = handler(kind, max_attempts=2, timeout=timeout, backoff=backoff, gate=find_gate)
    async with serve(declare(misbehave), lanes=("short",)):
        messages: dict[str, Subject] = {}
        # one that stops the event loop may make others late, so it comes alone
        for modes in (MODES.keys() - {"blocks"}, {"blocks"}):
            messages |= {mode: await begin(kind, payload=mode) for mode in sorted(modes)}
            neighbour = await begin(kind, payload="well")
            assert (await neighbour.wait_ended())["state"] == "done"
            for mode in sorted(modes):
                shows = functools.partial(_shows, control, messages[mode], *MODES[mode])
                await wait_until(shows, f"{mode}: {MODES[mode]}")

        expected = {messages[mode].id for mode, (state, _) in MODES.items() if state == "parked"}
        parked = Selection(kind=kind, state="parked")
        await wait_until(lambda: _lists(control, parked, expected), "the index knows all that are parked")
        listed = [m async for m in control.list(parked, limit=3)]
        assert len(listed) == 3
        assert all(m.parked_reason and m.parked_at for m in listed)


@pytest.mark.parametrize("encoding", ["pack"])  # what has a workflow of its own is given up by Temporal itself
async def test_a_handler_that_does_not_heed_being_cut_off_is_given_up(serve: Serve, begin: Begin, kind: str) -> None:
    """It counts as a failed attempt, and its place in its process is free for others: here there is one alone."""
    calls: list[str] = []

    @handler(kind, max_attempts=1, timeout=timedelta(milliseconds=300))
    async def be_deaf(message: Message, ctx: Context) -> Done:
        calls.append(message.id)
        until = time.monotonic() + (20 if message.payload == "deaf" else 0)
        while time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)
        return Done()

    async with serve(be_deaf, lanes=("short",), handlers_at_once=1):
        deaf = await begin(kind, payload="deaf")
        await wait_until(lambda: calls, "it is at work")
        [neighbour] = [await begin(kind, name) for name in deaf.neighbours(1)]

        assert (await neighbour.wait_ended())["state"] == "done"
        await wait_until(lambda: deaf.has(state="parked"), "it is parked")
        assert "no heed of being cut off" in (await deaf.explain())[-1]["reason"]
        assert Counter(calls) == {deaf.id: 1, neighbour.id: 1}


async def _lists(control: Control, selection: Selection, ids: set[str]) -> bool:
    return {m.id async for m in control.list(selection)} == ids


async def _shows(control: Control, message: Subject, state: str, reason: str) -> bool:
    view = await control.show(message.kind, message.id)
    if view.status is None or view.listed.state != state:
        return False
    reasons = [d["reason"] for d in view.decisions]
    return any(reason in text for text in reasons) and (state != "parked" or reason in view.listed.parked_reason)


async def test_calls_that_were_lost_with_their_workers_count_as_attempts(
    client: Client, settings: Settings, serve: Serve, control: Control, kind: str
) -> None:
    """A message that has lost as many as its handler allows is parked by the next worker, and not called again."""
    calls: list[str] = []

    @handler(kind, max_attempts=2)
    async def be_called(message: Message, ctx: Context) -> Done:
        calls.append(message.id)
        return Done()

    now = time.time()
    async with serve(be_called, lanes=("short",)):
        for name, lost in (("lost", 2), ("lucky", 1)):
            state = MessageState(kind, name, "short", due_at=now, earliest_at=now, attempt=lost)
            await start_asleep(client, task_queue(settings.task_queue_prefix, "short"), state, now)

        async def is_parked() -> bool:
            return (await control.show(kind, "lost")).listed.state == "parked"

        await wait_until(is_parked, "it is parked")
        reason = (await control.show(kind, "lost")).listed.parked_reason
        assert reason.startswith("attempt 2 of 2: its 2 calls before were lost")
        await wait_until(lambda: calls == ["lucky"], "the other is called")


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


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["pack"])  # what has a workflow of its own has nobody to wait for
async def test_those_who_take_long_on_a_longer_lane_delay_nobody_of_their_pack_on_a_shorter_one(
    serve: Serve, begin: Begin, kind: str
) -> None:
    """Some are at work on lane medium, in a batch each; on lane short one falls due and runs, and so do more there."""
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
        *names, quick = first.neighbours(4)
        slow: list[Subject] = []
        for number, name in enumerate(names, start=1):
            slow.append(await begin(kind, name, lane="medium"))
            await wait_until(lambda: len(at_work) == number, "it is at work")  # noqa: B023 — awaited here
        assert await (await begin(kind, quick, scheduled_at=datetime.now(UTC) + timedelta(seconds=1))).wait_ended()
        gate.set()
        assert [(await message.wait_ended())["state"] for message in slow] == ["done"] * len(names)
