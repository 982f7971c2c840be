"""The tutorial of steering: what a person or a program says to one message while it sleeps."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from activities import Again, Context, Done, Message, handler
from starter.control import Control
from tests.conftest import Serve, Start, wait_until


@dataclass
class Sleeper:
    """A message that has run once and sleeps until tomorrow; `seen` are the payloads that its handler has got."""

    id: str
    handle: WorkflowHandle[Any, Any]
    seen: list[Any]

    async def wait_called(self, times: int) -> None:
        """Wait until its handler has been called so often."""
        await wait_until(lambda: len(self.seen) == times, f"it has been called {times} times")

    async def is_paused(self) -> bool:
        """Return whether it says that it is paused."""
        return (await self.handle.query("status"))["state"] == "paused"


@pytest.fixture
async def sleeper(serve: Serve, start: Start, message_id: Callable[[], str]) -> AsyncIterator[Sleeper]:
    """A message of kind `sleeper` beside its worker; it ends when its payload says so."""
    seen: list[Any] = []

    @handler("sleeper")
    async def sleep(message: Message, ctx: Context) -> Again | Done:
        seen.append(message.payload)
        return Done() if message.payload == "last" else Again(after=timedelta(days=1))

    name = message_id()
    async with serve(sleep):
        sleeper = Sleeper(name, await start("sleeper", name, payload="first"), seen)
        await sleeper.wait_called(1)
        yield sleeper


async def test_a_sleeping_message_runs_when_somebody_asks(sleeper: Sleeper, control: Control) -> None:
    """`run_now` makes it due at once, a day before its time."""
    await control.run_now("sleeper", sleeper.id, "I can't wait")

    await sleeper.wait_called(2)


async def test_a_message_can_be_given_another_time_and_another_payload(sleeper: Sleeper, control: Control) -> None:
    """`revise` replaces what the handler will get, and `reschedule` says when."""
    await control.revise("sleeper", sleeper.id, "last")
    await control.reschedule("sleeper", sleeper.id, datetime.now(UTC) + timedelta(seconds=1))

    assert (await sleeper.handle.result())["state"] == "done"
    assert sleeper.seen == ["first", "last"]


async def test_a_paused_message_waits_until_it_is_resumed(sleeper: Sleeper, control: Control) -> None:
    """While it is paused even `run_now` does not run it, and says so; what was asked meanwhile counts afterwards."""
    await control.pause("sleeper", sleeper.id)
    await wait_until(sleeper.is_paused, "it has heard that")
    held_back = await control.run_now("sleeper", sleeper.id)
    await control.resume("sleeper", sleeper.id)

    await sleeper.wait_called(2)
    assert "paused" in held_back


async def test_a_stopped_message_ends_without_another_call(sleeper: Sleeper, control: Control) -> None:
    """`stop` ends it for good, and its result says so."""
    await control.stop("sleeper", sleeper.id, "no longer wanted")

    assert (await sleeper.handle.result())["state"] == "stopped"
    assert sleeper.seen == ["first"]
