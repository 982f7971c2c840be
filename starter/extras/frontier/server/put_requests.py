"""Requests to put URLs: how each is read from the wire, and acknowledged once its puts have ended."""

import asyncio
import time
from collections.abc import AsyncIterator

from starter.extras.frontier.crawl_url import CrawlUrl, QueueName
from starter.extras.frontier.frontier import PutStatus
from starter.extras.frontier.server.put_stream import PutPool, answer_puts
from starter.extras.frontier.wire import urlfrontier_pb2 as wire

ITEMS_OUTSTANDING = 1024
BATCHES_OUTSTANDING = 16
"""What a stream may send before the first of it is acknowledged; both are the reference's."""

_STATUSES = {
    PutStatus.OK: wire.AckMessage.OK,
    PutStatus.SKIPPED: wire.AckMessage.SKIPPED,
    PutStatus.FAIL: wire.AckMessage.FAIL,
}


class PutRequests:
    """Puts what the streams of clients bring into a pool, and acknowledges it."""

    def __init__(self, pool: PutPool) -> None:
        self._pool = pool

    def answer_items(self, requests: AsyncIterator[wire.URLItem]) -> AsyncIterator[wire.AckMessage]:
        """Put URLs, each with an acknowledgement of its own; without an id, its URL is that."""
        return answer_puts(requests, self._put_item, ITEMS_OUTSTANDING, self._pool)

    def answer_batches(self, requests: AsyncIterator[wire.DiscoveredBatch]) -> AsyncIterator[wire.BatchAck]:
        """Put batches of discovered URLs, each with one acknowledgement for all of it."""
        return answer_puts(requests, self._put_batch, BATCHES_OUTSTANDING, self._pool)

    async def _put_item(self, item: wire.URLItem) -> "asyncio.Task[wire.AckMessage]":
        is_discovered = item.HasField("discovered")
        info = item.discovered.info if is_discovered else item.known.info
        now = int(time.time())
        refetch_at = now if is_discovered else item.known.refetchable_from_date
        url = _to_crawl_url(info, refetch_at, now)
        putting = await self._pool.begin(url, is_discovered=is_discovered)

        async def acknowledge() -> wire.AckMessage:
            return wire.AckMessage(ID=item.ID or info.url, status=_STATUSES[await putting])

        return self._pool.keep(acknowledge())

    async def _put_batch(self, batch: wire.DiscoveredBatch) -> "asyncio.Task[wire.BatchAck]":
        now = int(time.time())
        putting = [await self._pool.begin(_to_crawl_url(info, now, now), is_discovered=True) for info in batch.items]

        async def acknowledge() -> wire.BatchAck:
            return wire.BatchAck(ID=batch.ID, statuses=[_STATUSES[await each] for each in putting])

        return self._pool.keep(acknowledge())


def _to_crawl_url(info: wire.URLInfo, refetch_at: int, created_at: int) -> CrawlUrl:
    metadata = {name: tuple(values.values) for name, values in info.metadata.items()}
    return CrawlUrl(QueueName.of(info.crawlID, info.key), info.url, metadata, refetch_at, created_at)
