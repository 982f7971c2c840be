"""The task pool: runs calls to the server, a bounded number at once."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, Generic, TypeVar

Landing = TypeVar("Landing")


class TaskPool(Generic[Landing]):
    """Runs calls concurrently and yields their results in the order in which they end."""

    def __init__(self, room: int) -> None:
        self._places = room
        self._room = asyncio.Semaphore(room)
        self._under_way: set[asyncio.Task[Landing]] = set()
        self._ended: asyncio.Queue[asyncio.Task[Landing] | None] = asyncio.Queue()

    @property
    def is_half_empty(self) -> bool:
        """At most half of the places are in use: the server answers faster than calls come."""
        return len(self._under_way) * 2 <= self._places

    async def submit(self, call: Coroutine[Any, Any, Landing]) -> None:
        """Begin a call as soon as there is room; its place becomes free when its result has been consumed."""
        try:
            await self._room.acquire()
        except BaseException:
            call.close()
            raise
        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._ended.put_nowait)

    async def results(self, beginning: Coroutine[Any, Any, None]) -> AsyncGenerator[Landing]:
        """Yield results until `beginning`, which submits the calls, and all of the calls have ended.

        An error of `beginning` or of a call is raised when it is reached, and cancels what is still under way.
        """
        source = asyncio.create_task(beginning)
        source.add_done_callback(lambda _: self._ended.put_nowait(None))
        is_over = False
        try:
            while self._under_way or not is_over:
                task = await self._ended.get()
                if task is None:
                    is_over = True
                    await source
                    continue
                self._under_way.discard(task)
                self._room.release()
                yield task.result()
        finally:
            await _end({source, *self._under_way})


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
