"""A section: one part of the board, read on and on at a price that does not grow with what there is to read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from shared.errors import DormiceError
from shared.temporal.backoff import REST, backoff_seconds, rest_seconds
from shared.temporal.connect import translate_rpc_errors

Value = TypeVar("Value")


class Section(Generic[Value]):
    """The last value that was read, and why there is no newer one."""

    def __init__(self, read: Callable[[], Awaitable[Value]], empty: Value, *, rest: float = REST) -> None:
        self._read = read
        self._rest = rest
        self.value = empty
        self.has_value = False
        """Whether it was ever read."""
        self.fault = ""
        """Why the last reading failed; empty if it did not."""
        self.next_at = 0.0
        """When it is read again, in monotonic seconds."""

    async def read_once(self) -> None:
        """Read it now. Raises RetryLater and Misconfigured."""
        with translate_rpc_errors():
            self.value = await self._read()
        self.has_value = True
        self.fault = ""

    async def keep(self, interval: float) -> None:
        """Read it every `interval` seconds or less often, and with a growing pause while that fails; for ever."""
        failures = 0
        while True:
            began = time.monotonic()
            try:
                await self.read_once()
                failures = 0
                pause = rest_seconds(time.monotonic() - began, interval, self._rest)
            except DormiceError as exc:
                failures += 1
                self.fault = str(exc)
                pause = max(interval / 2, backoff_seconds(failures))

            self.next_at = time.monotonic() + pause
            await asyncio.sleep(pause)
