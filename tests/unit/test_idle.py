"""The parts of idle capacity that need no server: how fast it is spent, who has just been woken, and its limits."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.idle.capacity import Slots
from activities.idle.due_index import SleepingWorkflow
from activities.idle.pull_rate import RATE_MAX, SLOWER, STEADIER, PullRate
from activities.idle.recent_pulls import REMEMBERED_SECONDS, WAITED_FOR_SECONDS, RecentPulls
from shared.keepers.idle import IdleLimits, PullCounts

NOW = datetime(2026, 11, 22, tzinfo=UTC)
RESERVE = 0.25


def beat(number: int, free: int) -> Slots:
    """Make a worker's heartbeat: 32 slots, `free` of them free."""
    return Slots(32, free, NOW + timedelta(seconds=2 * number))


def spend(allowance: PullRate, seconds: int = 2) -> int:
    """Use all of it up for some seconds."""
    return sum(allowance.take(0.25, 10_000) for _ in range(4 * seconds))


def test_it_begins_with_the_slots_that_are_free_beyond_the_reserve() -> None:
    """And grows while that leaves the slots free."""
    allowance = PullRate()
    allowance.follow(beat(0, 32), RESERVE)
    assert spend(allowance) == 48
    allowance.follow(beat(1, 32), RESERVE)

    assert allowance.rate == 36


@pytest.mark.parametrize("is_spent", [True, False])
def test_what_nobody_uses_does_not_grow(*, is_spent: bool) -> None:
    """A lane without sleeping workflows is no quicker one for that; nor is there anything without end."""
    allowance = PullRate()
    for number in range(100):
        allowance.follow(beat(number, 32), RESERVE)
        if is_spent:
            spend(allowance)

    assert allowance.rate == (RATE_MAX if is_spent else 24)


def test_it_shrinks_when_the_reserve_is_touched_and_never_ends() -> None:
    """One in a second is what is tried at least; a heartbeat that comes again says nothing."""
    allowance = PullRate()
    allowance.follow(beat(0, 32), RESERVE)
    for _ in range(3):
        allowance.follow(beat(1, 8), RESERVE)
    assert allowance.rate == pytest.approx(24 * SLOWER)
    for number in range(2, 20):
        allowance.follow(beat(number, 0), RESERVE)

    assert allowance.rate == 1


def test_once_something_had_to_wait_it_grows_with_care() -> None:
    """The first time it finds out fast what the lane bears; then it stays near that."""
    allowance = PullRate()
    for number in range(3):
        allowance.follow(beat(number, 32), RESERVE)
        spend(allowance)
    assert allowance.rate == 54
    allowance.retreat()
    spend(allowance)
    allowance.follow(beat(3, 32), RESERVE)

    assert allowance.rate == pytest.approx(54 * SLOWER * STEADIER)


def test_between_half_and_all_of_the_slots_it_stays() -> None:
    """So it settles instead of swinging."""
    allowance = PullRate()
    allowance.follow(beat(0, 32), RESERVE)
    spend(allowance)
    allowance.follow(beat(1, 16), RESERVE)

    assert allowance.rate == 24


def test_what_is_not_wanted_is_saved_for_a_second_and_no_longer() -> None:
    """After a pause there is no burst."""
    allowance = PullRate()
    allowance.follow(beat(0, 32), RESERVE)
    for _ in range(100):
        assert allowance.take(0.25, 0) == 0

    assert allowance.take(0.25, 10_000) == 24


def test_a_message_is_not_woken_twice_for_one_due_time() -> None:
    """The index is behind; once it has another due time, that counts."""
    woken = RecentPulls()
    sleeping = SleepingWorkflow(NOW, "a:1", is_pack=False)
    woken.note(sleeping, None)

    assert woken.due_of(sleeping) is None
    assert woken.due_of(SleepingWorkflow(NOW + timedelta(hours=1), "a:1", is_pack=False)) == NOW + timedelta(hours=1)
    assert woken.due_of(SleepingWorkflow(NOW, "a:2", is_pack=False)) == NOW


def test_a_pack_counts_as_due_when_the_pull_before_ended() -> None:
    """Until the index knows better: a due time that moved by seconds is never written there."""
    woken = RecentPulls()
    pack = SleepingWorkflow(NOW, "a~1", is_pack=True)
    until = NOW + timedelta(minutes=15)
    woken.note(pack, until)

    assert woken.due_of(pack) == until


def test_a_pack_that_has_not_begun_what_it_was_woken_for_is_asked_about() -> None:
    """Until it has, the index shows another due time, or it has taken ten seconds; its first due time is known."""
    woken = RecentPulls()
    until = NOW + timedelta(minutes=15)
    first, second = (SleepingWorkflow(NOW + timedelta(seconds=n), f"a~{n}", is_pack=True) for n in range(2))
    message = SleepingWorkflow(NOW, "a:1", is_pack=False)
    for each in (first, second):
        woken.note(each, until)
    woken.note(message, None)
    found = [first, second, message]
    now = time.monotonic()

    assert woken.find_undone(found, now) == [first, second]
    assert woken.first_undone([second, first]) == first.due_at
    assert woken.find_undone(found, now + WAITED_FOR_SECONDS) == []
    assert woken.find_undone([SleepingWorkflow(until, "a~1", is_pack=True)], now) == []

    woken.note_done(first)
    assert woken.find_undone(found, now) == [second]

    woken.note(first, until + timedelta(minutes=15))
    assert woken.first_undone([first]) == until


def test_who_was_woken_a_while_ago_is_forgotten() -> None:
    """Memory follows the rate, not the number of sleeping workflows."""
    woken = RecentPulls()
    woken.note(SleepingWorkflow(NOW, "a:1", is_pack=False), None)

    assert woken.forget_old(0.0) == 1
    assert woken.forget_old(1e12 + REMEMBERED_SECONDS) == 0


@pytest.mark.parametrize(
    ("wire", "sentence"),
    [
        ({"reserve": 1}, "reserve: is 1; give a number from 0 to 0.95"),
        ({"reserve": "much"}, "reserve: is 'much'; give a number from 0 to 0.95"),
        ({"reserve": True}, "reserve: is True; give a number from 0 to 0.95"),
        ({"pack_messages": 1.5}, "pack_messages: is 1.5; give a number from 1 to 500"),
        ({"pack_messages": 0}, "pack_messages: is 0; give a number from 1 to 500"),
        ({"quiet_seconds": 0}, "quiet_seconds: is 0; give a number from 0.5 to 3600"),
        ({"reach_seconds": 5.0}, "reach_seconds: is 5.0; give a number from 120 to 31536000"),
        ({"speed": 1}, "speed: there is no such limit; use pack_messages, quiet_seconds, reach_seconds, reserve"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(wire: dict[str, Any], sentence: str) -> None:
    """In one sentence that names the limit; what is read is what was written."""
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        IdleLimits.load(wire)

    assert IdleLimits.load(IdleLimits(reserve=0.5).dump()) == IdleLimits(reserve=0.5)


def test_counts_add_up() -> None:
    """Over shifts, and over versions that knew fewer of them."""
    first = PullCounts() + PullCounts(messages=1, early_seconds=10) + PullCounts(packs=1, early_seconds=20)
    both = first + PullCounts.load({"messages": 2, "unheard_of": 1})

    assert (both.messages, both.packs, both.mean_early_seconds) == (3, 1, 7.5)
    assert PullCounts.load(both.dump()) == both
    assert PullCounts().mean_early_seconds == 0
