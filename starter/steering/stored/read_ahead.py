"""Read-ahead: calls made side by side whose results come in order, with bounded memory."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from temporalio.client import WorkflowExecution, WorkflowExecutionAsyncIterator

Item = TypeVar("Item")
Found = TypeVar("Found")


async def read_ahead(
    items: AsyncIterator[Item], read: Callable[[Item], Awaitable[Found]], at_once: int
) -> AsyncGenerator[tuple[Item, Found]]:
    """Read items and yield each with what was found, in their order; the first error cancels everything.

    The first item is read alone, then twice as many at once as before, up to `at_once`: who wants little reads little.
    """
    ahead: deque[tuple[Item, asyncio.Future[Found]]] = deque()
    room = 1

    is_over = False
    try:
        while ahead or not is_over:
            while len(ahead) < room and not is_over:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    is_over = True
                else:
                    ahead.append((item, asyncio.ensure_future(read(item))))

            if ahead:
                found = await ahead[0][1]
                yield ahead.popleft()[0], found
                room = min(2 * room, at_once)
    finally:
        for _, reading in ahead:
            reading.cancel()
        await asyncio.gather(*(reading for _, reading in ahead), return_exceptions=True)


async def list_ahead(listing: WorkflowExecutionAsyncIterator) -> AsyncGenerator[WorkflowExecution]:
    """Give a listing's executions; while those of a page are used, the server looks for those of the next."""
    following: asyncio.Future[None] | None = asyncio.ensure_future(listing.fetch_next_page())
    try:
        while following is not None:
            await following
            page = listing.current_page or ()
            following = asyncio.ensure_future(listing.fetch_next_page()) if listing.next_page_token else None
            await asyncio.sleep(0)  # the call begins
            for execution in page:
                yield execution
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
