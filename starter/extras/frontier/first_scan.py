"""The first scan: counts what is stored when a frontier begins, and fills its buffer with what may be fetched.

A put waits until its pack has been read, so that nothing is counted twice or missed; the packs that puts wait for are
read first.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence

from shared.errors import RetryLater
from shared.messages.placement import Layout
from shared.temporal.backoff import backoff_seconds
from starter.extras.frontier.buffer.due_buffer import DueBuffer
from starter.extras.frontier.url_store import StoredUrl, UrlStore

logger = logging.getLogger(__name__)

READ_AT_ONCE = 8
YIELD_EVERY = 200
"""URLs after which others get a turn on the event loop."""


class FirstScan:
    """Reads all packs once."""

    def __init__(self, store: UrlStore, buffer: DueBuffer) -> None:
        self._store = store
        self._buffer = buffer
        self._left = OrderedDict[int, asyncio.Event]()
        """The packs that are not read yet, those that are wanted first."""
        self._reading = dict[int, asyncio.Event]()
        self._is_begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.found = 0

    async def run(self, layout: Layout) -> None:
        """Read all packs, and wait for the server where it does not answer."""
        began = time.monotonic()
        self._left.update((index, asyncio.Event()) for index in range(layout.packs))
        self._is_begun.set()
        async with asyncio.TaskGroup() as readers:
            for _ in range(READ_AT_ONCE):
                readers.create_task(self._keep_reading(layout))

        self.ended.set()
        about = {"action": "frontier_scanned", "urls": self.found, "seconds": round(time.monotonic() - began, 1)}
        logger.info("all stored URLs are counted", extra=about)

    async def wait_for(self, index: int) -> None:
        """Wait until a pack is read, before most others."""
        await self._is_begun.wait()
        if (wanted := self._left.get(index)) is not None:
            self._left.move_to_end(index, last=False)
        if (read := wanted or self._reading.get(index)) is not None:
            await read.wait()

    async def _keep_reading(self, layout: Layout) -> None:
        while self._left:
            index, read = self._left.popitem(last=False)
            self._reading[index] = read
            await self._note(await self._read(layout, index))
            del self._reading[index]
            read.set()

    async def _read(self, layout: Layout, index: int) -> list[StoredUrl]:
        failures = 0
        while True:
            with contextlib.suppress(RetryLater):
                return await self._store.read_pack(layout, index)
            failures += 1
            await asyncio.sleep(backoff_seconds(failures))

    async def _note(self, urls: Sequence[StoredUrl]) -> None:
        now = time.time()
        for number, (message_id, url) in enumerate(urls, start=1):
            self._buffer.change(url.queue, None, url)
            if not url.is_completed and url.refetch_at <= now:
                self._buffer.offer(message_id, url, now)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        self.found += len(urls)
