"""The retrying caller: sends calls at the rate limiter's rate, each repeated until it is answered or refused."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import is_transient, lacks_namespace
from starter.starting.calls.rate_limiter import RateLimiter

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class CallResult(Generic[Answer]):
    """Result of a call: the answer, or the error that ended it; a transient error when the patience is used up."""

    answer: Answer | None
    error: RPCError | None
    attempts: int


class RetryingCaller:
    """Makes calls that create or change something, and counts how often the server had no room."""

    def __init__(self, settings: Settings) -> None:
        self._patience = settings.patience.total_seconds()
        self._pace = RateLimiter(settings.starts_per_second)
        self.throttled = 0
        self.retried = 0

    async def call(self, send: Callable[[], Awaitable[Answer]]) -> CallResult[Answer]:
        """Call until the server answers, at most for the setting `patience`; RPC errors are returned, not raised."""
        give_up_at = time.monotonic() + self._patience
        attempts, is_starting = 0, False
        while True:
            await self._pace.take()
            attempts += 1
            try:
                answer = await send()
            except RPCError as exc:
                if not is_transient(exc):
                    self._pace.note_answered()
                    return CallResult(None, exc, attempts)
                if lacks_namespace(exc) and not is_starting:  # the server is starting: full patience again
                    give_up_at, is_starting = time.monotonic() + self._patience, True
                if time.monotonic() >= give_up_at:
                    return CallResult(None, exc, attempts)
                await self._back_off(exc, attempts)
            else:
                self._pace.note_answered()
                return CallResult(answer, None, attempts)

    async def _back_off(self, exc: RPCError, attempts: int) -> None:
        if exc.status is RPCStatusCode.RESOURCE_EXHAUSTED:
            self.throttled += 1
            self._pace.note_throttled()
        else:
            self.retried += 1
        await asyncio.sleep(backoff_seconds(attempts))
