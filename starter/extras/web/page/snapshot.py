"""Snapshots: what was last read of the server, shared by all who look: many viewers cost the server no more than one.

Whatever takes too long goes on behind the page: meanwhile that shows what was read before, and says what is missing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from temporalio.service import RPCError

from shared.errors import DormiceError
from shared.messages.timespan import format_seconds
from shared.temporal.backoff import rest_seconds
from shared.temporal.connect import translate_rpc_error

DEADLINE_SECONDS = 10.0
"""Most that a view waits for what it shows."""
REST = 20.0
"""While people look, a value rests this many times as long as reading it took: what takes 1 s is read every 20 s."""

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Part(Generic[Value_co]):
    """A part of a view: its value, None if there is none (yet), its age in seconds, and what is wrong with it."""

    value: Value_co | None
    age: float = 0.0
    problem: str = ""


async def read_part(reading: Awaitable[Value], seconds: float = DEADLINE_SECONDS) -> Part[Value]:
    """Wait for a value, no longer than that; what fails or does not come becomes a sentence."""
    try:
        async with asyncio.timeout(seconds):
            return Part(await reading)
    except TimeoutError:
        return Part(None, problem=f"nothing came within {seconds:g} s; look again in a while")
    except (DormiceError, RPCError) as exc:
        return Part(None, problem=describe_error(exc))


def describe_error(exc: DormiceError | RPCError) -> str:
    """Give an error as one sentence."""
    translated = translate_rpc_error(exc) if isinstance(exc, RPCError) else exc
    return " ".join(str(translated).split())


class Snapshot(Generic[Value]):
    """One value of the server as it was last read; it is read when somebody looks and it is older than `fresh`."""

    def __init__(self, read: Callable[[], Awaitable[Value]], fresh: float = 3.0) -> None:
        self._read = read
        self._fresh = fresh
        self._part: Part[Value] = Part(None)
        self._read_at = -1.0
        self._fresh_until = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def read(self, seconds: float = DEADLINE_SECONDS) -> Part[Value]:
        """Give the value, a fresh one if it comes in time."""
        if self._reading is None and time.monotonic() >= self._fresh_until:
            self._reading = asyncio.create_task(self._renew())

        problem = self._part.problem
        if self._reading is not None:
            done, _ = await asyncio.wait([self._reading], timeout=seconds)
            problem = self._part.problem if done else f"nothing came within {seconds:g} s"

        if self._part.value is None:
            return Part(None, problem=problem)

        age = time.monotonic() - self._read_at
        older = f"{problem}; shown is what was read {format_seconds(age)} ago" if problem else ""
        return Part(self._part.value, age, older)

    def forget(self) -> None:
        """Read it anew the next time, because something was changed."""
        self._fresh_until = 0.0

    async def _renew(self) -> None:
        begun = time.monotonic()
        try:
            self._part = Part(await self._read())
            self._read_at = time.monotonic()
        except (DormiceError, RPCError, TimeoutError) as exc:
            said = "nothing came in time" if isinstance(exc, TimeoutError) else describe_error(exc)
            self._part = Part(self._part.value, problem=said)
        finally:
            now = time.monotonic()
            self._fresh_until = now + rest_seconds(now - begun, self._fresh, REST)
            self._reading = None
