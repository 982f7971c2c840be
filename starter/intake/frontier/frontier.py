"""The frontier: what a crawl's URLs are put into, and taken from when they may be fetched."""

import asyncio
import enum
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from temporalio.client import Client

from shared.settings import Settings
from starter.intake.frontier.crawl_url import CrawlUrl, QueueName


class PutStatus(enum.StrEnum):
    """What became of a URL that was put."""

    OK = "ok"
    """The server has stored it."""
    SKIPPED = "skipped"
    """It is known already, or can't be stored as it is; there is no use in sending it again."""
    FAIL = "fail"
    """It could not be stored now; it may be sent again."""


class QueueCounts(NamedTuple):
    """What a queue holds, or the queues of a crawl together."""

    queues: int
    active: int
    in_process: int
    completed: int
    active_queues: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierOptions:
    """Which messages a frontier serves, and how many of them it keeps at hand."""

    kind: str = "frontier"
    packs: int = 100
    buffer: int = 1_000_000
    """Most URLs that wait in memory to be taken."""
    drain: timedelta = timedelta(seconds=30)


class Frontier:
    """The URLs of one kind of messages. `run` it once; meanwhile everything else may be called.

    What needs the server raises RetryLater while that does not answer; `put` answers FAIL instead.
    """

    def __init__(self, client: Client, settings: Settings, options: FrontierOptions) -> None:
        self.is_active = True
        """Whether `take` gives any URLs."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until `stopping` is set, then end what is under way; no put may begin after that."""
        raise NotImplementedError

    async def put(self, url: CrawlUrl, *, is_discovered: bool) -> PutStatus:
        """Store a URL: a discovered one unless it is known, any other as it is now; its `created_at` does not count.

        A discovered one may be fetched at once, so its `refetch_at` does not count either. Many at once are sent
        together.
        """
        raise NotImplementedError

    def take(
        self, crawl: str | None, key: str, *, queues_max: int, urls_max: int, lease_seconds: int
    ) -> Iterator[CrawlUrl]:
        """Give URLs that may be fetched, by queue in turns, of all crawls if `crawl` is None; 0 is no limit.

        A URL is held for `lease_seconds` from when the iterator gives it, so who reads no further holds no more.
        """
        raise NotImplementedError

    async def find(self, queue: QueueName, url: str) -> CrawlUrl | None:
        """Give a URL as it is stored; None if there is none."""
        raise NotImplementedError

    def list_crawls(self) -> list[str]:
        """Name the crawls."""
        raise NotImplementedError

    def list_queues(self, crawl: str, *, start: int, size: int, is_inactive_too: bool) -> list[str]:
        """Name the queues of a crawl by key; those that are blocked or completed only if asked for."""
        raise NotImplementedError

    def count(self, crawl: str, key: str) -> QueueCounts:
        """Count a queue's URLs, or with an empty key those of all queues of the crawl."""
        raise NotImplementedError

    def read_urls(self, crawl: str, key: str) -> AsyncIterator[CrawlUrl]:
        """Give what is stored of a queue, or with an empty key of a crawl, in no fixed order."""
        raise NotImplementedError

    async def delete(self, crawl: str, key: str) -> int:
        """Delete a queue, or with an empty key a crawl; give how many of its URLs were active."""
        raise NotImplementedError

    async def purge(self, crawl: str, key: str, before: int) -> int:
        """Delete what was first put before a moment; give the number."""
        raise NotImplementedError

    def block(self, queue: QueueName, until: int) -> None:
        """Hold back a queue's URLs until a moment, in seconds since the epoch; 0 ends that."""
        raise NotImplementedError

    def set_delay(self, queue: QueueName | None, seconds: int) -> None:
        """Set how long a queue rests after it gave URLs, for None that of all queues without one of their own."""
        raise NotImplementedError

    def limit(self, queue: QueueName, count: int) -> bool:
        """Give no more URLs of a queue once `count` are completed, 0 is no limit; False if there is no such queue."""
        raise NotImplementedError
