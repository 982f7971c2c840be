"""The queues of a frontier: what is stored of each and at hand, and when it may give some."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from starter.extras.frontier.buffer.queue_urls import QueueUrls
from starter.extras.frontier.crawl_url import CrawlUrl, QueueName


class QueueCounts(NamedTuple):
    """What a queue holds, or several queues together."""

    queues: int = 0
    active: int = 0
    in_process: int = 0
    completed: int = 0
    active_queues: int = 0


@dataclass(slots=True)
class CrawlQueue:
    """A queue; moments are seconds since the epoch."""

    name: QueueName
    active: int = 0
    """URLs that are stored and not completed, at hand or not."""
    completed: int = 0
    blocked_until: float = 0.0
    delay: float | None = None
    """How long it rests after it gave URLs, if it has a delay of its own."""
    limit: int = 0
    """It gives none once as many URLs are completed; 0 is no limit."""
    gave_at: float = 0.0
    rests_until: float | None = None
    rest_noted: float | None = None
    """The latest moment that has been noted for the end of a rest, and not come to yet."""
    urls: QueueUrls = field(default_factory=QueueUrls)
    """Those that are at hand."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored of it, and nothing at hand."""
        return not (self.active or self.completed or self.urls)

    @property
    def is_limit_reached(self) -> bool:
        """Whether as many of its URLs are completed as it may have."""
        return 0 < self.limit <= self.completed

    def may_give_at(self, default_delay: float) -> float:
        """Give from when on it is neither blocked nor rests."""
        delay = default_delay if self.delay is None else self.delay
        return max(self.blocked_until, self.gave_at + delay)

    def change(self, before: CrawlUrl | None, after: CrawlUrl | None) -> None:
        """Count what is stored of one URL, and no longer what was."""
        for url, step in ((before, -1), (after, 1)):
            if url is not None and url.is_completed:
                self.completed += step
            elif url is not None:
                self.active += step

    def count(self, now: float) -> QueueCounts:
        """Count its URLs."""
        self.urls.end_leases(now)
        leased = self.urls.leased
        return QueueCounts(1, self.active, leased, self.completed, int(self.active > 0 or leased > 0))


class CrawlQueues:
    """The queues of all crawls, by name; moments are seconds since the epoch."""

    def __init__(self) -> None:
        self._queues: dict[QueueName, CrawlQueue] = {}

    def __iter__(self) -> Iterator[CrawlQueue]:
        return iter(self._queues.values())

    def find(self, name: QueueName) -> CrawlQueue | None:
        """Give a queue, if there is one of that name."""
        return self._queues.get(name)

    def find_or_begin(self, name: QueueName) -> CrawlQueue:
        """Give a queue, a new one if there was none."""
        if (queue := self._queues.get(name)) is None:
            queue = self._queues[name] = CrawlQueue(name)
        return queue

    def drop(self, name: QueueName) -> None:
        """Forget a queue and how it was set."""
        del self._queues[name]

    def names(self, crawl: str) -> list[QueueName]:
        """Name the queues of a crawl."""
        return [name for name in self._queues if name.crawl == crawl]

    def list_crawls(self) -> list[str]:
        """Name the crawls."""
        return list(dict.fromkeys(name.crawl for name in self._queues))

    def list_keys(self, crawl: str, now: float, *, is_inactive_too: bool) -> Iterator[str]:
        """Name the queues of a crawl by key: all, or those with active URLs that are not blocked."""
        for name, queue in self._queues.items():
            if name.crawl == crawl and (is_inactive_too or (queue.active and queue.blocked_until < now)):
                yield name.key

    def count(self, crawl: str, key: str, now: float) -> QueueCounts:
        """Count the URLs of a queue, or without a key those of a crawl."""
        if key:
            queue = self._queues.get(QueueName(crawl, key))
            return QueueCounts() if queue is None else queue.count(now)
        counted = [queue.count(now) for name, queue in self._queues.items() if name.crawl == crawl]
        return QueueCounts(*map(sum, zip(*counted, strict=True))) if counted else QueueCounts()
