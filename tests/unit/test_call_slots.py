"""Slots for calls of handlers: never more than there are, nobody who waits is forgotten, and slow calls block none."""

import asyncio
import random

import pytest

from activities.calls.slots import SLOW_SHARE, CallSlots


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
    slots = CallSlots(1)
    taken = list[str]()
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
            slots.give_back(is_slow=False)

    assert taken == ["first", "second", "first", "second"]


async def test_a_slot_that_is_free_is_left_to_those_who_wait() -> None:
    """Otherwise a busy batch could be overtaken for ever."""
    slots = CallSlots(1)
    await slots.take(1)
    waiting = asyncio.create_task(slots.take(1))
    await settle()
    slots.give_back(is_slow=False)
    late = asyncio.create_task(slots.take(1))
    await settle()

    assert waiting.done()
    assert not late.done()
    slots.give_back(is_slow=False)
    assert await late == 1


@pytest.mark.parametrize("is_called", [False, True], ids=["while it waits", "when its turn has come"])
async def test_who_is_cancelled_holds_up_nobody(*, is_called: bool) -> None:
    """Its turn passes to the next, also when a slot was just given to it."""
    slots = CallSlots(1)
    await slots.take(1)
    cancelled, following = (asyncio.create_task(slots.take(1)) for _ in range(2))
    await settle()
    if is_called:
        slots.give_back(is_slow=False)
    cancelled.cancel()
    await settle()
    if not is_called:
        slots.give_back(is_slow=False)

    assert await following == 1
    assert cancelled.cancelled()


async def test_there_are_never_more_calls_than_slots() -> None:
    """Whatever batches come, are cut off, or end; in the end all slots are free again."""
    slots = CallSlots(7)
    chance = random.Random(5)
    calls = list[asyncio.Task[None]]()
    at_work = maximum = 0

    async def run(count: int) -> None:
        nonlocal at_work, maximum
        while count:
            taken = await slots.take(count)
            count -= taken
            at_work += taken
            maximum = max(maximum, at_work)
            calls.extend(asyncio.create_task(end()) for _ in range(taken))

    async def end() -> None:
        nonlocal at_work
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        at_work -= 1
        slots.give_back(is_slow=False)

    batches = [asyncio.create_task(run(chance.randrange(1, 30))) for _ in range(50)]
    for batch in chance.sample(batches, 15):
        await asyncio.sleep(0)
        batch.cancel()
    await asyncio.gather(*batches, return_exceptions=True)
    await asyncio.gather(*calls)

    assert maximum == 7
    assert await slots.take(100) == 7


async def test_a_slow_call_keeps_no_slot_from_quick_ones() -> None:
    """It has one of its own, which nobody takes for a quick call."""
    slots = CallSlots(2)
    await slots.take(2)
    waiting = asyncio.create_task(slots.take(5))
    await settle()
    before = waiting.done()
    assert slots.move_to_slow()
    assert await waiting == 1
    slots.give_back(is_slow=True)
    late = asyncio.create_task(slots.take(1))
    await settle()

    assert not before
    assert not late.done()
    slots.give_back(is_slow=False)
    assert await late == 1


async def test_slow_calls_are_a_few_times_the_quick_ones_at_most() -> None:
    """One more stays where it is, until a slow one ends: so the memory that they need is limited."""
    slots = CallSlots(3)
    for _ in range(3 * SLOW_SHARE):
        await slots.take(1)
        assert slots.move_to_slow()
    await slots.take(1)

    assert not slots.move_to_slow()
    assert await slots.take(9) == 2
    slots.give_back(is_slow=True)
    assert slots.move_to_slow()
    assert await slots.take(9) == 1


async def test_there_are_never_more_calls_than_slots_whatever_gets_slow() -> None:
    """However calls end, quick or slow; in the end all slots of both kinds are free again."""
    slots = CallSlots(3)
    chance = random.Random(7)
    quick = slow = most_quick = most_slow = 0

    async def call() -> None:
        nonlocal quick, slow, most_quick, most_slow
        await slots.take(1)
        quick += 1
        most_quick = max(most_quick, quick)
        await asyncio.sleep(0)

        is_slow = chance.random() < 0.7 and slots.move_to_slow()
        if is_slow:
            quick -= 1
            slow += 1
            most_slow = max(most_slow, slow)

        for _ in range(chance.randrange(30)):
            await asyncio.sleep(0)

        if is_slow:
            slow -= 1
        else:
            quick -= 1

        slots.give_back(is_slow=is_slow)

    await asyncio.gather(*(call() for _ in range(200)))

    assert most_quick == 3
    assert 3 < most_slow <= 3 * SLOW_SHARE
    for _ in range(3 * SLOW_SHARE):
        await slots.take(1)
        assert slots.move_to_slow()
    assert await slots.take(9) == 3
