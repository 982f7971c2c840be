"""The service: what each call of URLFrontier's interface asks of the frontier, and how it is answered."""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import grpc

from starter.extras.frontier.crawl_url import CrawlUrl, QueueName, derive_key, normalize_crawl
from starter.extras.frontier.frontier import Frontier
from starter.extras.frontier.server.call_guard import CallRefused, Context
from starter.extras.frontier.server.put_requests import PutRequests
from starter.extras.frontier.server.put_stream import PutPool
from starter.extras.frontier.wire import urlfrontier_pb2 as wire
from starter.extras.frontier.wire.urlfrontier_pb2_grpc import URLFrontierServicer

PAGE_SIZE = 100
DAY_SECONDS = 86_400
ROOT_LOGGERS = ("", "ROOT")

_LEVELS = {"TRACE": logging.DEBUG, "WARN": logging.WARNING}


class FrontierService(URLFrontierServicer):
    """Answers the calls of crawlers; `address` is what the list of nodes names."""

    def __init__(self, frontier: Frontier, pool: PutPool) -> None:
        self.address = ""
        self._frontier = frontier
        self._stopping = pool.stopping
        self._puts = PutRequests(pool)

    async def PutURLs(
        self, request_iterator: AsyncIterator[wire.URLItem], context: Context
    ) -> AsyncIterator[wire.AckMessage]:
        """Put URLs, each with an acknowledgement of its own; without an id, its URL is that."""
        del context
        async for ack in self._puts.answer_items(request_iterator):
            yield ack

    async def PutDiscovered(
        self, request_iterator: AsyncIterator[wire.DiscoveredBatch], context: Context
    ) -> AsyncIterator[wire.BatchAck]:
        """Put batches of discovered URLs, each with one acknowledgement for all of it."""
        del context
        async for ack in self._puts.answer_batches(request_iterator):
            yield ack

    async def GetURLs(self, request: wire.GetParams, context: Context) -> AsyncIterator[wire.URLInfo]:
        """Give URLs that are due. A key without a crawl names no queue, as with the reference."""
        del context
        crawl = request.crawlID if request.HasField("crawlID") else None
        if self._stopping.is_set() or (request.key and crawl is None):
            return

        for url in self._frontier.take(
            crawl,
            request.key,
            queues_max=request.max_queues,
            urls_max=request.max_urls_per_queue,
            lease_seconds=request.delay_requestable,
        ):
            yield _to_info(url)

    async def GetURLStatus(self, request: wire.URLStatusRequest, context: Context) -> wire.URLItem:
        """Give one URL as it is stored."""
        del context
        if not request.key and derive_key(request.url) is None:
            raise CallRefused(grpc.StatusCode.INVALID_ARGUMENT, "url: names no host; give a whole URL, or its key")
        found = await self._frontier.find(QueueName.of(request.crawlID, request.key), request.url)
        if found is None:
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "url: is unknown in this queue of this crawl; put it first")
        return _to_item(found)

    async def ListURLs(self, request: wire.ListUrlParams, context: Context) -> AsyncIterator[wire.URLItem]:
        """Give a page of what is stored of a queue or crawl."""
        del context
        size = request.size or PAGE_SIZE
        position = 0

        async with aclosing(_read(self._frontier, request)) as urls:
            async for url in urls:
                position += 1
                if position > request.start:
                    yield _to_item(url)
                if position >= request.start + size:
                    return

    async def CountURLs(self, request: wire.CountUrlParams, context: Context) -> wire.Long:
        """Count what is stored of a queue or crawl."""
        del context
        async with aclosing(_read(self._frontier, request)) as urls:
            return wire.Long(value=sum([1 async for _ in urls]))

    async def ListNodes(self, request: wire.Empty, context: Context) -> wire.StringList:
        """Name this process alone: frontiers do not know each other."""
        del request, context
        return wire.StringList(values=[self.address])

    async def ListCrawls(self, request: wire.Local, context: Context) -> wire.StringList:
        """Name the crawls."""
        del request, context
        return wire.StringList(values=self._frontier.list_crawls())

    async def ListQueues(self, request: wire.Pagination, context: Context) -> wire.QueueList:
        """Name a page of a crawl's queues."""
        del context
        values = self._frontier.list_queues(
            request.crawlID,
            start=request.start,
            size=request.size or PAGE_SIZE,
            is_inactive_too=request.include_inactive,
        )
        crawl = normalize_crawl(request.crawlID)

        return wire.QueueList(values=values, start=request.start, size=len(values), crawlID=crawl)

    async def GetStats(self, request: wire.QueueWithinCrawlParams, context: Context) -> wire.Stats:
        """Count the URLs of a queue or crawl."""
        del context
        counts = self._frontier.count(request.crawlID, request.key)
        return wire.Stats(
            size=counts.active,
            inProcess=counts.in_process,
            counts={"completed": counts.completed, "active_queues": counts.active_queues},
            numberOfQueues=counts.queues,
            crawlID=normalize_crawl(request.crawlID),
        )

    async def DeleteQueue(self, request: wire.QueueWithinCrawlParams, context: Context) -> wire.Long:
        """Delete a queue."""
        del context
        if not request.key:
            raise CallRefused(grpc.StatusCode.INVALID_ARGUMENT, "key: is missing; name the queue, or call DeleteCrawl")
        return wire.Long(value=await self._frontier.delete(request.crawlID, request.key))

    async def DeleteCrawl(self, request: wire.DeleteCrawlMessage, context: Context) -> wire.Long:
        """Delete a crawl."""
        del context
        return wire.Long(value=await self._frontier.delete(request.value, ""))

    async def PurgeURLs(self, request: wire.PurgeUrlParams, context: Context) -> wire.Long:
        """Delete what was first put more than some days ago."""
        del context
        before = max(int(time.time()) - request.days * DAY_SECONDS, 0)
        return wire.Long(value=await self._frontier.purge(request.crawlID, request.key, before))

    async def BlockQueueUntil(self, request: wire.BlockQueueParams, context: Context) -> wire.Empty:
        """Hold back a queue until a moment."""
        del context
        self._frontier.block(QueueName.of(request.crawlID, request.key), request.time)
        return wire.Empty()

    async def SetDelay(self, request: wire.QueueDelayParams, context: Context) -> wire.Empty:
        """Set how long a queue rests after it gave URLs; without a key, all queues."""
        del context
        queue = QueueName.of(request.crawlID, request.key) if request.key else None
        self._frontier.set_delay(queue, request.delay_requestable)
        return wire.Empty()

    async def SetCrawlLimit(self, request: wire.CrawlLimitParams, context: Context) -> wire.Empty:
        """Limit how many URLs of a queue are fetched."""
        del context
        if not self._frontier.limit(QueueName.of(request.crawlID, request.key), request.limit):
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "key: names no queue of this crawl; put a URL of it first")
        return wire.Empty()

    async def SetActive(self, request: wire.Active, context: Context) -> wire.Empty:
        """Begin or cease to give URLs."""
        del context
        self._frontier.is_active = request.state
        return wire.Empty()

    async def GetActive(self, request: wire.Local, context: Context) -> wire.Boolean:
        """Say whether URLs are given."""
        del request, context
        return wire.Boolean(state=self._frontier.is_active)

    async def SetLogLevel(self, request: wire.LogLevelParams, context: Context) -> wire.Empty:
        """Set the level of a logger that there is: names that clients choose must not fill the memory."""
        del context
        name = "" if request.package in ROOT_LOGGERS else request.package
        if name and name not in logging.root.manager.loggerDict:
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "package: names no logger; give ROOT, or a module's name")
        level = wire.LogLevelParams.Level.Name(request.level)
        logging.getLogger(name).setLevel(_LEVELS.get(level, level))
        return wire.Empty()


async def _read(frontier: Frontier, request: wire.ListUrlParams | wire.CountUrlParams) -> AsyncGenerator[CrawlUrl]:
    """Read a queue or crawl, what the request's filter lets through; a blank one lets through all."""
    fold = str.casefold if request.ignoreCase else str
    wanted = fold(request.filter) if request.filter.strip() else ""
    async for url in frontier.read_urls(request.crawlID, request.key):
        if wanted in fold(url.url):
            yield url


def _to_info(url: CrawlUrl) -> wire.URLInfo:
    metadata = {name: wire.StringList(values=values) for name, values in url.metadata.items()}
    return wire.URLInfo(url=url.url, key=url.queue.key, crawlID=url.queue.crawl, metadata=metadata)


def _to_item(url: CrawlUrl) -> wire.URLItem:
    known = wire.KnownURLItem(info=_to_info(url), refetchable_from_date=url.refetch_at)
    return wire.URLItem(known=known, creation_date=url.created_at)
