"""The `echo` handler does what its payload says."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from activities.api.outcome import Again, Done, Reject, RetryAfter
from activities.handlers.echo import echo
from activities.testing import live, make_context, make_message

MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("payload", "version", "expected"),
    [
        (None, 0, Again(after=MINUTE, reason="echoed")),
        ({}, 0, Again(after=MINUTE, reason="echoed")),
        ([1], 7, Again(after=MINUTE, reason="echoed")),
        ("text", 0, Again(after=MINUTE, reason="echoed")),
        ({"delay": 0}, 0, Again(after=timedelta(0), reason="echoed")),
        ({"delay": 0.25, "work": 0}, 0, Again(after=timedelta(milliseconds=250), reason="echoed")),
        (
            {"earliest": 10, "tolerance": 0},
            0,
            Again(after=MINUTE, earliest=MINUTE / 6, tolerance=timedelta(0), reason="echoed"),
        ),
        ({"cycles": None}, 10**6, Again(after=MINUTE, reason="echoed")),
        ({"cycles": 3}, 1, Again(after=MINUTE, reason="echoed")),
        ({"cycles": 3}, 2, Done("echoed 3 times")),
        ({"cycles": 3}, 9, Done("echoed 10 times")),
        ({"cycles": 1}, 0, Done("echoed 1 times")),
        ({"fail": "reject", "cycles": 1}, 0, Reject("its payload asked to be rejected")),
    ],
)
async def test_echo_returns_what_its_payload_asks_for(
    payload: Any, version: int, expected: Again | Done | Reject
) -> None:
    """Delay, pull-forward, tolerance and number of cycles come from the payload; without one it comes back for ever."""
    assert await echo(make_message(echo, payload, version=version), make_context()) == expected


async def test_echo_raises_when_asked() -> None:
    """An attempt that fails, for trials of backoff and parking."""
    with pytest.raises(RuntimeError, match="its payload asked to fail"):
        await echo(make_message(echo, {"fail": "raise"}), make_context())


async def test_echo_asks_to_be_retried_later_when_asked() -> None:
    """A server's wish to wait, without using up an attempt."""
    with pytest.raises(RetryAfter, match="its payload asked to wait") as caught:
        await echo(make_message(echo, {"fail": "retry_after"}), make_context())

    assert caught.value.delay == timedelta(seconds=5)


@pytest.mark.parametrize("payload", [{"fail": "hang"}, {"work": 3600}])
async def test_echo_is_still_at_work_when_asked_to_hang_or_to_work_long(payload: Any) -> None:
    """It never gives the event loop up for good: a timeout around it cuts it off."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await echo(make_message(echo, payload), make_context())


@pytest.mark.parametrize("payload", [{"work": "long"}, {"delay": None}, {"delay": "1h"}, {"cycles": "3"}])
async def test_echo_fails_on_values_that_are_no_numbers(payload: Any) -> None:
    """A mistake in a trial's payload is an attempt that fails, never silence."""
    with pytest.raises(TypeError):
        await echo(make_message(echo, payload), make_context())


def test_echo_is_on_the_short_lane() -> None:
    """The lane that costs least."""
    assert (echo.kind, echo.lane) == ("echo", "short")


async def test_echo_comes_back_as_often_as_its_payload_says() -> None:
    """A life of four cycles, a minute apart."""
    life = await live(echo, make_message(echo, {"delay": 60, "tolerance": 0, "cycles": 4}))

    assert (life.state, life.result) == ("done", "echoed 4 times")
    assert life.cycles[-1].at - life.cycles[0].at == 3 * MINUTE
