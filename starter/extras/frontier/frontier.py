"""The frontier: what a crawl's URLs are put into, and taken from when they may be fetched.

Each URL is a message of one packed kind. One process serves a kind: it holds the buffer of what may be fetched, and
the worker of the packs.
"""

import asyncio
import collections
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from activities.registry import Registry
from shared.errors import RetryLater
from shared.messages.encoding import SIZE_MAX, Pack
from shared.messages.placement import Layout
from shared.settings import Settings
from starter.extras.frontier.buffer.crawl_queue import QueueCounts
from starter.extras.frontier.buffer.due_buffer import DueBuffer
from starter.extras.frontier.crawl_url import KEY_MAX, CrawlUrl, QueueName, derive_key, normalize_crawl
from starter.extras.frontier.due_worker import make_handler, make_plan, wait_for_others, watch_for_others
from starter.extras.frontier.first_scan import FirstScan
from starter.extras.frontier.puts import Put, PutKind, Puts, PutStatus
from starter.extras.frontier.url_store import UrlStore
from worker.main import run_explained, unless_set

__all__ = ["CrawlUrl", "Frontier", "FrontierOptions", "PutStatus", "QueueCounts", "QueueName"]

LEASE_SECONDS = 30
"""What the reference takes where a client leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierOptions:
    """Which messages a frontier serves, and how many of them it keeps at hand."""

    kind: str = "frontier"
    packs: int = 100
    buffer: int = 1_000_000
    """Most URLs that wait in memory to be taken."""
    drain: timedelta = timedelta(seconds=30)
    offer: timedelta = timedelta(minutes=5)
    """How long a URL that was offered to the buffer sleeps until its next offer: most have been fetched by then."""


class Frontier:
    """The URLs of one kind of messages. `run` it once, in the loop that made it; meanwhile all else may be called.

    What needs the server raises RetryLater while that does not answer; `put` answers FAIL instead.
    """

    def __init__(self, client: Client, settings: Settings, options: FrontierOptions) -> None:
        self._client = client
        self._options = options
        pack = Pack(packs=options.packs, size=SIZE_MAX)
        self._buffer = DueBuffer(options.buffer)
        self._store = UrlStore(client, settings, options.kind, pack, options.offer.total_seconds())
        offering = make_handler(options.kind, pack, self._buffer, options.offer.total_seconds())
        self._registry = Registry([(__name__, offering)])
        self._scan = FirstScan(self._store, self._buffer)
        self._puts = Puts(self._store, self._buffer, self._scan.wait_for)
        self.is_active = True
        """Whether `take` gives any URLs."""
        self.started = asyncio.Event()
        """Set as soon as this process is the one that serves the kind."""
        self.gap = "starting"
        """Why it does not serve; empty while it does."""
        self.counts = collections.Counter[str]()
        """URLs that were put, by what became of them, and URLs that were taken."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, then end what is under way; no put may begin after that.

        Raises Misconfigured or RetryLater when it can't go on.
        """
        layout = await unless_set(stopping, self._begin())
        if layout is None:
            return

        worker_stopping = asyncio.Event()
        plan = make_plan(self._store.settings, self._registry, self._options.drain)
        working = asyncio.create_task(run_explained(self._client, plan, worker_stopping))
        beginning = {
            asyncio.create_task(self._scan.run(layout)),
            asyncio.create_task(watch_for_others(self._client, self._store.settings)),
        }
        stop = asyncio.create_task(stopping.wait())

        try:
            self.started.set()
            self.gap = ""

            watched: set[asyncio.Future[Any]] = {working, stop, self._puts.fault}
            while not any(each.done() for each in watched):
                await asyncio.wait(watched | beginning, return_when=asyncio.FIRST_COMPLETED)
                for ended in [each for each in beginning if each.done()]:
                    ended.result()
                    beginning.discard(ended)

            self.gap = "stopping"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.drain.total_seconds()):
                    await self._puts.drain()
        finally:
            self._puts.close()
            for task in (*beginning, stop):
                task.cancel()
            worker_stopping.set()
            await asyncio.gather(working, stop, *beginning, return_exceptions=True)

        working.result()
        if self._puts.fault.done():
            self._puts.fault.result()

    async def _begin(self) -> Layout:
        """Wait until this process may serve the kind; gives how that is packed."""
        self.gap = "another process serves this kind, or was killed a moment ago"
        await wait_for_others(self._client, self._store.settings)
        self.gap = "the server does not answer"
        return await self._store.find_layout_patiently()

    async def put(self, url: CrawlUrl, *, is_discovered: bool) -> PutStatus:
        """Store a URL: a discovered one unless it is known, any other as it is now; its `created_at` does not count.

        A discovered one may be fetched at once, so its `refetch_at` does not count either. Many at once are sent
        together. Without a key, the URL's host is its key.
        """
        status = await self._put(url, is_discovered=is_discovered)
        self.counts[status] += 1
        return status

    async def _put(self, url: CrawlUrl, *, is_discovered: bool) -> PutStatus:
        if (name := _complete(url.queue, url.url)) is None or not url.url:
            return PutStatus.SKIPPED

        url = replace(url, queue=name)
        message_id = url.message_id
        if is_discovered and self._buffer.peek(message_id, name) is not None:
            return PutStatus.SKIPPED
        if not self._store.is_storable(url):
            return PutStatus.SKIPPED
        if not self.started.is_set():
            return PutStatus.FAIL

        kind = PutKind.DISCOVERED if is_discovered else PutKind.KNOWN
        put = Put(kind, message_id, url)
        self._puts.submit(put)
        return await put.done

    def take(
        self, crawl: str | None, key: str, *, queues_max: int, urls_max: int, lease_seconds: int
    ) -> Iterator[CrawlUrl]:
        """Give URLs that may be fetched, by queue in turns, of all crawls if `crawl` is None; 0 is no limit.

        A URL is held for `lease_seconds` from when the iterator gives it, so who reads no further holds no more.
        """
        crawl = None if crawl is None else normalize_crawl(crawl)
        taken = self._buffer.take(crawl, key, (queues_max, urls_max), lease_seconds or LEASE_SECONDS, time.time)
        while self.is_active and (url := next(taken, None)) is not None:
            self.counts["taken"] += 1
            yield url

    async def find(self, queue: QueueName, url: str) -> CrawlUrl | None:
        """Give a URL as it is stored; None if there is none."""
        name = _complete(queue, url)
        return None if name is None else await self._store.find(CrawlUrl(name, url).message_id)

    def list_crawls(self) -> list[str]:
        """Name the crawls."""
        return self._buffer.queues.list_crawls()

    def list_queues(self, crawl: str, *, start: int, size: int, is_inactive_too: bool) -> list[str]:
        """Name the queues of a crawl by key; those that are blocked or completed only if asked for."""
        names = self._buffer.queues.list_keys(normalize_crawl(crawl), time.time(), is_inactive_too=is_inactive_too)
        return [name for number, name in enumerate(names) if start <= number < start + size]

    def count(self, crawl: str, key: str) -> QueueCounts:
        """Count a queue's URLs, or with an empty key those of all queues of the crawl."""
        return self._buffer.queues.count(normalize_crawl(crawl), key, time.time())

    async def read_urls(self, crawl: str, key: str) -> AsyncGenerator[CrawlUrl]:
        """Give what is stored of a queue, or with an empty key of a crawl, in no fixed order."""
        crawl = normalize_crawl(crawl)
        async with contextlib.aclosing(self._store.read_all()) as packs:
            async for found in packs:
                for _, url in found:
                    if url.queue.crawl == crawl and key in ("", url.queue.key):
                        yield url

    async def delete(self, crawl: str, key: str) -> int:
        """Delete a queue, or with an empty key a crawl; give how many of its URLs were active."""
        crawl = normalize_crawl(crawl)
        await self._scan.ended.wait()
        active = self._buffer.queues.count(crawl, key, time.time()).active
        names = [QueueName(crawl, key)] if key else self._buffer.queues.names(crawl)
        for name in names:
            self._buffer.clear(name)
        await self._delete_stored(crawl, key)
        for name in names:
            self._buffer.drop(name)

        return active

    async def purge(self, crawl: str, key: str, before: int) -> int:
        """Delete what was first put before a moment; give the number."""
        return await self._delete_stored(normalize_crawl(crawl), key, before)

    async def _delete_stored(self, crawl: str, key: str, before: float = float("inf")) -> int:
        """Delete what is stored of a queue or crawl, a pack at a time; raises RetryLater if some could not be."""
        await self._scan.ended.wait()
        count = 0

        async with contextlib.aclosing(self.read_urls(crawl, key)) as urls:
            puts: list[Put] = []
            async for url in urls:
                if url.created_at < before:
                    puts.append(Put(PutKind.DELETION, url.message_id, url, before=url))
                    self._puts.submit(puts[-1])
                    count += 1

        outcomes = await asyncio.gather(*(put.done for put in puts))
        if PutStatus.FAIL in outcomes:
            raise RetryLater(f"{outcomes.count(PutStatus.FAIL):,} URLs could not be deleted now; try again")
        return count

    def block(self, queue: QueueName, until: int) -> None:
        """Hold back a queue's URLs until a moment, in seconds since the epoch; 0 ends that."""
        self._buffer.block(QueueName.of(*queue), until)

    def set_delay(self, queue: QueueName | None, seconds: int) -> None:
        """Set how long a queue rests after it gave URLs, for None that of all queues without one of their own."""
        name = None if queue is None else QueueName.of(*queue)
        self._buffer.set_delay(name, seconds)

    def limit(self, queue: QueueName, count: int) -> bool:
        """Give no more URLs of a queue once `count` are completed, 0 is no limit; False if there is no such queue."""
        return self._buffer.limit(QueueName.of(*queue), count)


def _complete(queue: QueueName, url: str) -> QueueName | None:
    """Give a queue's name with what a client may leave out; None if it can't be one."""
    key = queue.key or derive_key(url)
    return None if key is None or len(key) > KEY_MAX else QueueName.of(queue.crawl, key)
