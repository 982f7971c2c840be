"""Resources: what the handlers of one process share and somebody must close, such as a pool of connections."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

from shared.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Opener = Callable[[Settings], AbstractAsyncContextManager[T]]

CLOSING_SECONDS = 6.0  # less than the time that a process has left after its workers have drained


class Resources:
    """Opens each resource at its first use, keeps it for all later ones, and closes it with the `async with` block."""

    def __init__(self) -> None:
        self._opened: dict[Opener[Any], asyncio.Future[Any]] = {}
        self._owners: set[asyncio.Task[None]] = set()
        self._is_closing = asyncio.Event()

    async def get(self, opener: Opener[T], settings: Settings) -> T:
        """Give what `opener` opens; if it raises, its error is raised, and the next use opens anew."""
        opened = self._opened.get(opener)
        if opened is None:
            opened = self._opened[opener] = asyncio.get_running_loop().create_future()
            owner = asyncio.create_task(self._own(opener, settings, opened))
            self._owners.add(owner)
            owner.add_done_callback(lambda task: self._end(opener, opened, task))
        return await asyncio.shield(opened)  # a caller that is cut off does not end it for the others

    async def _own(self, opener: Opener[T], settings: Settings, opened: "asyncio.Future[T]") -> None:
        # in one task, because what a context manager enters there may have to be left in the same one
        async with opener(settings) as resource:
            opened.set_result(resource)
            await self._is_closing.wait()

    def _end(self, opener: Opener[Any], opened: "asyncio.Future[Any]", owner: asyncio.Task[None]) -> None:
        self._owners.discard(owner)
        if self._opened.get(opener) is opened:
            del self._opened[opener]

        failure = None if owner.cancelled() else owner.exception()
        if opened.done():
            if failure is not None:
                logger.error("resource not closed", extra={"action": "resource_not_closed", "reason": repr(failure)})
        elif failure is None:
            opened.cancel()
        else:
            opened.set_exception(failure)
            opened.exception()  # marks it as seen, because whoever asked may be gone

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all within a time limit; the next use would open anew."""
        self._is_closing.set()
        if not self._owners:
            return
        late = (await asyncio.wait(self._owners.copy(), timeout=CLOSING_SECONDS))[1]
        for owner in late:
            owner.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)
