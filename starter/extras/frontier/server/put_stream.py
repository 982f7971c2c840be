"""A stream of puts: read no faster than they are stored, and answered in the order in which they are."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc

from starter.extras.frontier.crawl_url import CrawlUrl
from starter.extras.frontier.frontier import Frontier, PutStatus
from starter.extras.frontier.server.call_guard import CallRefused
from worker.main import unless_set

logger = logging.getLogger(__name__)

PUTS_MAX = 20_000
"""Puts under way in one process: a pause of the server fills no memory."""

Item = TypeVar("Item")
Ack = TypeVar("Ack")


class PutPool:
    """The puts of all streams. They go on when their client has gone, so that none is cut off half done."""

    def __init__(self, frontier: Frontier, stopping: asyncio.Event) -> None:
        self.stopping = stopping
        self._frontier = frontier
        self._room = asyncio.Semaphore(PUTS_MAX)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def begin(self, url: CrawlUrl, *, is_discovered: bool) -> "asyncio.Task[PutStatus]":
        """Begin to put a URL as soon as there is room for one more."""
        await self._room.acquire()
        putting = self.keep(self._put(url, is_discovered=is_discovered))
        putting.add_done_callback(lambda _: self._room.release())
        return putting

    def keep(self, work: Coroutine[Any, Any, Ack]) -> "asyncio.Task[Ack]":
        """Run a coroutine to its end, whoever awaits it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Wait for the puts that have begun."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _put(self, url: CrawlUrl, *, is_discovered: bool) -> PutStatus:
        try:
            return await self._frontier.put(url, is_discovered=is_discovered)
        except Exception:
            # a defect: its client is answered that the URL is not stored and puts it again, and all others go on
            logger.exception("a put failed by a defect", extra={"action": "put_failed"})
            return PutStatus.FAIL


async def answer_puts(
    requests: AsyncIterator[Item], put: Callable[[Item], Awaitable["asyncio.Task[Ack]"]], room: int, pool: PutPool
) -> AsyncIterator[Ack]:
    """Put each request and give its acknowledgement once it is there, with at most `room` of them outstanding.

    A request that can't be read and the order to stop end the reading; what was read before is still acknowledged,
    then CallRefused is raised. A client that reads no acknowledgements gets no further request read.
    """
    acks: asyncio.Queue[Ack | None] = asyncio.Queue()
    window = asyncio.Semaphore(room)
    reading = asyncio.create_task(_read(requests, put, window, acks, pool))

    try:
        while (ack := await acks.get()) is not None:
            yield ack
            window.release()
        await reading
    finally:
        reading.cancel()


async def _read(
    requests: AsyncIterator[Item],
    put: Callable[[Item], Awaitable["asyncio.Task[Ack]"]],
    window: asyncio.Semaphore,
    acks: "asyncio.Queue[Ack | None]",
    pool: PutPool,
) -> None:
    outstanding: set[asyncio.Task[Ack]] = set()

    def finish(putting: "asyncio.Task[Ack]") -> None:
        outstanding.discard(putting)
        acks.put_nowait(putting.result())

    async def read_all() -> bool:
        async for request in requests:
            await window.acquire()
            putting = await put(request)
            outstanding.add(putting)
            putting.add_done_callback(finish)
        return True

    try:
        if not await unless_set(pool.stopping, read_all()):
            raise CallRefused(grpc.StatusCode.UNAVAILABLE, "the frontier ends; send what was not acknowledged again")
    finally:
        while outstanding:
            await asyncio.wait(outstanding)
        acks.put_nowait(None)
