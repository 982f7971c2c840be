"""Slots for calls of handlers: never more than there are, and nobody who waits is forgotten."""

import asyncio
import random

import pytest

from activities.calls.slots import CallSlots


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_free_slots_are_taken_at_once() -> None:
    """As many as are wanted, or as there are: whoever has many calls to begin does not wait for each."""
    slots = CallSlots(5)

    assert await slots.take(3) == 3
    assert await slots.take(9) == 2


async def test_those_who_wait_take_turns() -> None:
    """A batch that wants hundreds gets what is free, and the one behind it what is free next."""
    slots, taken = CallSlots(1), list[str]()
    await slots.take(1)

    async def take_all(name: str) -> None:
        for _ in range(2):
            await slots.take(100)
            taken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name in ("first", "second"):
            tasks.create_task(take_all(name))
        for _ in range(4):
            await settle()
            slots.give_back()

    assert taken == ["first", "second", "first", "second"]


async def test_a_slot_that_is_free_is_left_to_those_who_wait() -> None:
    """Otherwise a busy batch could be overtaken for ever."""
    slots = CallSlots(1)
    await slots.take(1)
    waiting = asyncio.create_task(slots.take(1))
    await settle()
    slots.give_back()
    late = asyncio.create_task(slots.take(1))
    await settle()

    assert waiting.done()
    assert not late.done()
    slots.give_back()
    assert await late == 1


@pytest.mark.parametrize("is_called", [False, True], ids=["while it waits", "when its turn has come"])
async def test_who_is_cancelled_holds_up_nobody(*, is_called: bool) -> None:
    """Its turn passes to the next, also when a slot was just given to it."""
    slots = CallSlots(1)
    await slots.take(1)
    cancelled, following = (asyncio.create_task(slots.take(1)) for _ in range(2))
    await settle()
    if is_called:
        slots.give_back()
    cancelled.cancel()
    await settle()
    if not is_called:
        slots.give_back()

    assert await following == 1
    assert cancelled.cancelled()


async def test_there_are_never_more_calls_than_slots() -> None:
    """Whatever batches come, are cut off, or end; in the end all slots are free again."""
    slots, chance, calls = CallSlots(7), random.Random(5), list[asyncio.Task[None]]()
    at_work = most = 0

    async def run(count: int) -> None:
        nonlocal at_work, most
        while count:
            taken = await slots.take(count)
            count -= taken
            at_work += taken
            most = max(most, at_work)
            calls.extend(asyncio.create_task(end()) for _ in range(taken))

    async def end() -> None:
        nonlocal at_work
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        at_work -= 1
        slots.give_back()

    batches = [asyncio.create_task(run(chance.randrange(1, 30))) for _ in range(50)]
    for batch in chance.sample(batches, 15):
        await asyncio.sleep(0)
        batch.cancel()
    await asyncio.gather(*batches, return_exceptions=True)
    await asyncio.gather(*calls)

    assert most == 7
    assert await slots.take(100) == 7
