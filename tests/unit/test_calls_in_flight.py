"""Calls in flight in a process: each version once, each with one slot, however it ends."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from activities.calls.calls_in_flight import Call, CallsInFlight
from activities.calls.slots import SLOW_SHARE, CallSlots
from shared.messages.message import Outcome

SLOTS = 3
DONE = Outcome("done")


class Handlers:
    """Calls that a test lets end, and how often each has begun."""

    def __init__(self) -> None:
        self.in_flight = CallsInFlight(CallSlots(SLOTS))
        self.begun: list[str] = []
        self.may_end = asyncio.Event()

    async def begin(self, key: str) -> Call:
        """Begin a call, with a slot that it waits for."""
        await self.in_flight.slots.take(1)
        return self.in_flight.begin(key, self._make(key))

    async def end_all(self) -> None:
        """Let all calls end, and what follows from their ends happen."""
        self.may_end.set()
        while self.in_flight:  # noqa: ASYNC110 — the loop itself does it
            await asyncio.sleep(0)

    async def count_free(self) -> tuple[int, int]:
        """Count the free slots of both kinds, by taking them all."""
        quick = await self.in_flight.slots.take(99)
        slow = 0
        while self.in_flight.slots.move_to_slow():
            slow += 1
            await self.in_flight.slots.take(1)
        return quick, slow

    def _make(self, key: str) -> Callable[[], Coroutine[Any, Any, Outcome]]:
        async def run() -> Outcome:
            self.begun.append(key)
            await self.may_end.wait()
            return DONE

        return run


ALL_FREE = (SLOTS, SLOTS * SLOW_SHARE)


async def test_a_version_in_flight_is_given_to_whoever_asks_for_it() -> None:
    """The handler is called once, and the second slot is free again at once."""
    handlers = Handlers()
    first = await handlers.begin("feed:a:0")
    second = await handlers.begin("feed:a:0")
    other = await handlers.begin("feed:a:1")
    taken = await handlers.in_flight.slots.take(99)
    for _ in range(taken):
        handlers.in_flight.slots.give_back(is_slow=False)
    await handlers.end_all()

    assert first is second
    assert first is not other
    assert (taken, handlers.begun) == (SLOTS - 2, ["feed:a:0", "feed:a:1"])
    assert await first.task == await other.task == DONE
    assert await handlers.count_free() == ALL_FREE


async def test_a_version_that_has_ended_is_called_again() -> None:
    """Its pack did not hear of the outcome: at least once is what a handler is promised."""
    handlers = Handlers()
    first = await handlers.begin("feed:a:0")
    await handlers.end_all()
    second = await handlers.begin("feed:a:0")
    await handlers.end_all()

    assert first is not second
    assert handlers.begun == ["feed:a:0"] * 2


async def test_a_slow_call_gives_its_slot_to_quick_ones_once() -> None:
    """However often its pack asks for it, and whoever else has it."""
    handlers = Handlers()
    call = await handlers.begin("feed:a:0")
    for _ in range(3):
        handlers.in_flight.let_be_slow(call)
    free = await handlers.in_flight.slots.take(99)
    for _ in range(free):
        handlers.in_flight.slots.give_back(is_slow=False)
    await handlers.end_all()

    assert (call.is_slow, free) == (True, SLOTS)
    assert await handlers.count_free() == ALL_FREE


async def test_a_call_that_was_given_up_keeps_no_slot_and_no_version() -> None:
    """Another call of its version begins, and its own end, if it ever comes, frees nothing a second time."""
    handlers = Handlers()
    quick = await handlers.begin("feed:a:0")
    slow = await handlers.begin("feed:b:0")
    handlers.in_flight.let_be_slow(slow)
    for call in (quick, slow, quick):
        handlers.in_flight.abandon(call)
    handlers.in_flight.let_be_slow(quick)
    again = await handlers.begin("feed:a:0")
    await handlers.end_all()
    await asyncio.gather(quick.task, slow.task)
    await asyncio.sleep(0)

    assert again is not quick
    assert handlers.begun == ["feed:a:0", "feed:b:0", "feed:a:0"]
    assert await handlers.count_free() == ALL_FREE


async def test_a_cancelled_call_frees_its_slot() -> None:
    """Also one that had not begun to run."""
    handlers = Handlers()
    call = await handlers.begin("feed:a:0")
    call.task.cancel()
    await asyncio.gather(call.task, return_exceptions=True)
    await asyncio.sleep(0)

    assert (len(handlers.in_flight), handlers.begun) == (0, [])
    assert await handlers.count_free() == ALL_FREE
