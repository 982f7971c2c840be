"""The rate limiter: follows what the server bears, down at once and up again slowly."""

import asyncio
import math
from datetime import timedelta

import pytest

from shared.temporal.backoff import BACKOFF_MAX_SECONDS, Patience, backoff_seconds
from starter.starting.calls import RateLimiter


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Give the seconds."""
        return self.now


def throttled(clock: Clock, *, answered: int = 200, ceiling: float = 0.0) -> RateLimiter:
    """Make a rate limiter whose server has answered `answered` calls in the last two seconds, and then had no room."""
    limiter = RateLimiter(ceiling, clock)
    for _ in range(answered):
        limiter.note_answered()
    limiter.note_throttled()
    return limiter


async def grow(limiter: RateLimiter, clock: Clock, seconds: float) -> None:
    """Let time pass with calls going out all along."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now += 0.5
        await limiter.take()


async def test_without_a_ceiling_nothing_waits_until_the_server_objects() -> None:
    """A fast server is used as fast as it is."""
    clock = Clock()
    limiter = RateLimiter(0.0, clock)

    for _ in range(1000):
        await limiter.take()  # a place in the future would wait for the clock for ever

    assert limiter.rate == math.inf


async def test_the_first_objection_halves_what_was_answered() -> None:
    """200 answers in the window of two seconds are 100 a second; half of it goes on."""
    assert throttled(Clock()).rate == 50.0


async def test_objections_of_one_overload_count_as_one() -> None:
    """64 calls in flight are refused together: that is one message from the server, not 64."""
    clock = Clock()
    limiter = throttled(clock)

    for _ in range(63):
        clock.now += 0.01
        limiter.note_throttled()

    assert limiter.rate == 50.0


async def test_the_rate_is_back_after_ten_seconds() -> None:
    """It grows by a twentieth of the former rate a second."""
    clock = Clock()
    limiter = throttled(clock)

    await grow(limiter, clock, 10.0)

    assert limiter.rate == pytest.approx(100.0)


async def test_an_objection_while_the_rate_grows_is_heard() -> None:
    """Growing is no excuse: a server that goes on objecting is given less and less."""
    clock = Clock()
    limiter = throttled(clock)
    rates: list[float] = []
    for _ in range(4):
        await grow(limiter, clock, 1.5)
        for _ in range(10):
            limiter.note_answered()
        limiter.note_throttled()
        rates.append(limiter.rate)

    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 10.0


async def test_the_rate_never_grows_above_the_ceiling() -> None:
    """What a person set as the most stays the most."""
    clock = Clock()
    limiter = throttled(clock, ceiling=80.0)

    await grow(limiter, clock, 60.0)

    assert limiter.rate == 80.0


@pytest.mark.parametrize(("ceiling", "slowest"), [(0.0, 1.0), (10.0, 1.0), (0.25, 0.25)])
async def test_the_rate_never_falls_to_nothing(ceiling: float, slowest: float) -> None:
    """One call a second goes on asking whether there is room again, unless even that was too much for its owner."""
    clock = Clock()
    limiter = throttled(clock, answered=0, ceiling=ceiling)

    for _ in range(20):
        clock.now += 2.0
        limiter.note_throttled()

    assert limiter.rate == slowest


async def test_answers_of_long_ago_do_not_count() -> None:
    """What the server bore before a pause says nothing about what it bears now."""
    clock = Clock()
    limiter = RateLimiter(0.0, clock)
    for _ in range(1000):
        limiter.note_answered()
    clock.now += 60.0

    limiter.note_throttled()

    assert limiter.rate == 1.0


async def test_places_are_given_at_the_rate_and_in_order() -> None:
    """A ceiling of 200 a second is kept by the real clock, first come first served."""
    loop = asyncio.get_running_loop()
    limiter = RateLimiter(200.0)
    order: list[int] = []
    began = loop.time()

    async def take(number: int) -> None:
        await limiter.take()
        order.append(number)

    await asyncio.gather(*(take(number) for number in range(60)))

    assert order == list(range(60))
    assert loop.time() - began >= 59 / 200 - 0.001  # a loop may end a sleep so much too early


async def test_a_throttle_also_slows_the_call_that_was_waiting_when_it_came() -> None:
    """Places are not handed out ahead: who waits goes at the rate of the moment when the turn comes."""
    clock = Clock()
    limiter = RateLimiter(1000.0, clock)
    for _ in range(20):
        limiter.note_answered()
    await limiter.take()
    waiting = asyncio.create_task(limiter.take())
    await asyncio.sleep(0)

    limiter.note_throttled()  # from now on five a second
    clock.now += 0.19
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.05)
    clock.now += 0.01

    await waiting


@pytest.mark.parametrize("attempts", range(1, 40))
def test_a_backoff_doubles_up_to_its_cap(attempts: int) -> None:
    """The lower half of it is certain, the upper half is chance, so that many starters do not come back together."""
    ceiling = min(BACKOFF_MAX_SECONDS, 0.1 * 2 ** min(attempts, 10))

    assert ceiling / 2 <= backoff_seconds(attempts) <= ceiling


async def test_patience_counts_attempts_and_ends() -> None:
    """A caller that is out of patience may be given all of it anew, for instance because the server is starting."""
    patience = Patience(timedelta())
    assert patience.is_over

    patience.renew(timedelta(minutes=1))
    await patience.wait()

    assert not patience.is_over
    assert patience.attempts == 2
