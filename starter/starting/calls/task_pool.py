"""The flight: calls to the server that are under way, a bounded number at once."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, Generic, TypeVar

Landing = TypeVar("Landing")


class TaskPool(Generic[Landing]):
    """Runs calls beside each other and gives what they come to, in the order in which they end."""

    def __init__(self, room: int) -> None:
        self._places = room
        self._room = asyncio.Semaphore(room)
        self._under_way: set[asyncio.Task[Landing]] = set()
        self._ended: asyncio.Queue[asyncio.Task[Landing] | None] = asyncio.Queue()

    @property
    def is_half_empty(self) -> bool:
        """The server answers sooner than there is something to ask of it."""
        return len(self._under_way) * 2 <= self._places

    async def submit(self, call: Coroutine[Any, Any, Landing]) -> None:
        """Begin a call as soon as there is room; room is given back when what it came to has been taken."""
        try:
            await self._room.acquire()
        except BaseException:
            call.close()
            raise
        task = asyncio.create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._ended.put_nowait)

    async def results(self, beginning: Coroutine[Any, Any, None]) -> AsyncGenerator[Landing]:
        """Give what the calls come to until `beginning`, which begins them, and all of them have ended.

        An error of it or of a call is raised when it is reached; what is under way then is cancelled.
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
