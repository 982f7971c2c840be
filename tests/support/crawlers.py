"""A crawler of the tests: it speaks to a frontier as crawlers do, through the stubs that gRPC makes."""

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpc import aio

from starter.extras.frontier.wire import urlfrontier_pb2 as wire
from starter.extras.frontier.wire.urlfrontier_pb2_grpc import URLFrontierStub
from tests.conftest import wait_until

if TYPE_CHECKING:
    from starter.extras.frontier.wire.urlfrontier_pb2_grpc import URLFrontierAsyncStub

Status = wire.AckMessage.Status
OK = wire.AckMessage.OK
SKIPPED = wire.AckMessage.SKIPPED
FAIL = wire.AckMessage.FAIL
ANSWERS = 10.0
"""Seconds in which a call that concerns one queue is answered."""


@dataclass(frozen=True, slots=True)
class Crawler:
    """Works on one crawl of a frontier; "" is the default one."""

    stub: "URLFrontierAsyncStub"
    channel: aio.Channel
    crawl: str = ""

    def info(self, url: str, key: str = "", metadata: Mapping[str, Sequence[str]] | None = None) -> wire.URLInfo:
        """Describe a URL of the crawl."""
        lists = {name: wire.StringList(values=values) for name, values in (metadata or {}).items()}
        return wire.URLInfo(url=url, key=key, crawlID=self.crawl, metadata=lists)

    def discovered(self, url: str, key: str = "", **metadata: Sequence[str]) -> wire.URLItem:
        """Say that a URL was found."""
        return wire.URLItem(discovered=wire.DiscoveredURLItem(info=self.info(url, key, metadata)))

    def known(self, url: str, date: int, key: str = "", **metadata: Sequence[str]) -> wire.URLItem:
        """Say when a URL is to be fetched again; 0: never."""
        info = self.info(url, key, metadata)
        return wire.URLItem(known=wire.KnownURLItem(info=info, refetchable_from_date=date))

    async def put(self, *items: wire.URLItem) -> list[tuple[str, Status]]:
        """Send URLs and give the acknowledgements, sorted."""
        acks = [(ack.ID, ack.status) async for ack in self.stub.PutURLs(iter(items))]
        return sorted(acks)

    async def discover(self, *urls: str) -> None:
        """Put URLs that were found, which must be new."""
        assert await self.put(*map(self.discovered, urls)) == sorted((url, OK) for url in urls)

    async def take(
        self, key: str = "", *, urls: int = 0, queues: int = 0, lease: int = 0, is_any_crawl: bool = False
    ) -> list[str]:
        """Get URLs that are due."""
        params = wire.GetParams(key=key, max_urls_per_queue=urls, max_queues=queues, delay_requestable=lease)
        if is_any_crawl:
            params.anyCrawlID.SetInParent()
        else:
            params.crawlID = self.crawl
        return [info.url async for info in self.stub.GetURLs(params)]

    async def take_all(self, count: int, key: str = "", *, lease: int = 300) -> list[str]:
        """Get URLs until there are `count`, in the order in which they come."""
        found: list[str] = []

        async def is_complete() -> bool:
            found.extend(await self.take(key, lease=lease))
            return len(found) >= count

        await wait_until(is_complete, f"{count} URLs are given")
        return found

    async def stats(self, key: str = "") -> tuple[int, int, int, int]:
        """Count queues, active URLs, those in process, and completed ones."""
        params = wire.QueueWithinCrawlParams(key=key, crawlID=self.crawl)
        stats = await self.stub.GetStats(params, timeout=ANSWERS)
        return stats.numberOfQueues, stats.size, stats.inProcess, stats.counts["completed"]

    async def status(self, url: str, key: str = "") -> wire.URLItem:
        """Look one URL up."""
        return await self.stub.GetURLStatus(wire.URLStatusRequest(url=url, key=key, crawlID=self.crawl))

    async def list_urls(self, **params: str | int | bool) -> list[wire.URLItem]:
        """List URLs."""
        request = wire.ListUrlParams(crawlID=self.crawl)
        for name, value in params.items():
            setattr(request, name, value)
        return [item async for item in self.stub.ListURLs(request)]

    async def list_queues(self, **params: int | bool) -> list[str]:
        """List queues."""
        request = wire.Pagination(crawlID=self.crawl)
        for name, value in params.items():
            setattr(request, name, value)
        return list((await self.stub.ListQueues(request)).values)


@contextlib.asynccontextmanager
async def crawling(address: str, crawl: str = "") -> AsyncGenerator[Crawler]:
    """Connect a crawler to a frontier as soon as it answers."""
    async with aio.insecure_channel(address) as channel:
        crawler = Crawler(URLFrontierStub(channel), channel, crawl)
        await crawler.stub.GetActive(wire.Local(), wait_for_ready=True, timeout=50)
        yield crawler


def now() -> int:
    """Give the time as the interface counts it."""
    return int(time.time())
