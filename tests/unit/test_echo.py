"""The `echo` handler does what its payload says."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from activities.api.context import Context
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter
from activities.handlers.echo import echo
from shared.settings import Settings

MINUTE = timedelta(minutes=1)


@pytest.fixture
async def context() -> AsyncIterator[Context]:
    """A context built by hand."""
    now = datetime.now(UTC)
    async with httpx.AsyncClient(trust_env=False) as client:
        yield Context(
            attempt=1,
            idempotency_key="echo:a:0",
            due_at=now,
            started_at=now,
            settings=Settings(),
            http=client,
            logger=logging.LoggerAdapter(logging.getLogger("test")),
        )


def message(payload: Any, version: int = 0) -> Message:
    """Make a message for `echo`."""
    return Message(kind="echo", id="a", version=version, lane="short", payload=payload)


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
    context: Context, payload: Any, version: int, expected: Again | Done | Reject
) -> None:
    """Delay, pull-forward, tolerance and number of cycles come from the payload; without one it comes back for ever."""
    assert await echo(message(payload, version), context) == expected


async def test_echo_raises_when_asked(context: Context) -> None:
    """An attempt that fails, for trials of backoff and parking."""
    with pytest.raises(RuntimeError, match="its payload asked to fail"):
        await echo(message({"fail": "raise"}), context)


async def test_echo_asks_to_be_retried_later_when_asked(context: Context) -> None:
    """A server's wish to wait, without using up an attempt."""
    with pytest.raises(RetryAfter, match="its payload asked to wait") as caught:
        await echo(message({"fail": "retry_after"}), context)

    assert caught.value.delay == timedelta(seconds=5)


@pytest.mark.parametrize("payload", [{"fail": "hang"}, {"work": 3600}])
async def test_echo_is_still_at_work_when_asked_to_hang_or_to_work_long(context: Context, payload: Any) -> None:
    """It never gives the event loop up for good: a timeout around it cuts it off."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await echo(message(payload), context)


@pytest.mark.parametrize("payload", [{"work": "long"}, {"delay": None}, {"delay": "1h"}, {"cycles": "3"}])
async def test_echo_fails_on_values_that_are_no_numbers(context: Context, payload: Any) -> None:
    """A mistake in a trial's payload is an attempt that fails, never silence."""
    with pytest.raises(TypeError):
        await echo(message(payload), context)


def test_echo_is_on_the_short_lane() -> None:
    """The lane that costs least."""
    assert (echo.kind, echo.lane) == ("echo", "short")
