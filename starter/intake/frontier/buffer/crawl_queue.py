"""One queue of a frontier: those of its URLs that are at hand, in their order, and when it may give some."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from starter.intake.frontier.crawl_url import CrawlUrl, QueueName

_COMPACTED_FROM = 32


class QueueCounts(NamedTuple):
    """What a queue holds, or several queues together."""

    queues: int = 0
    active: int = 0
    in_process: int = 0
    completed: int = 0
    active_queues: int = 0


@dataclass(slots=True)
class HeldUrl:
    """A URL at hand; until `leased_until` it is in somebody's hands, and 0 when it is in nobody's."""

    url: CrawlUrl
    leased_until: float = 0.0


@dataclass(slots=True)
class CrawlQueue:
    """A queue; moments are seconds since the epoch. Heaps keep what has left, until it comes up or is too much."""

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
    urls: dict[str, HeldUrl] = field(default_factory=dict[str, HeldUrl])
    leased: int = 0
    _waiting: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """(refetch_at, url, id): the order of the reference."""
    _leases: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    def put(self, message_id: str, url: CrawlUrl, leased_until: float = 0.0) -> None:
        """Take a URL in, in place of its version before."""
        self.remove(message_id)
        self.urls[message_id] = HeldUrl(url)
        if leased_until:
            self._lease(message_id, leased_until)
        else:
            self._wait(message_id, url)

    def remove(self, message_id: str) -> HeldUrl | None:
        """Let a URL go, and give it if it was there."""
        held = self.urls.pop(message_id, None)
        if held is not None and held.leased_until:
            self.leased -= 1
        return held

    def clear(self) -> int:
        """Let all go; give their number."""
        count = len(self.urls)
        self.urls = {}
        self._waiting = []
        self._leases = []
        self.leased = 0
        return count

    def give(self, now: float, leased_until: float) -> CrawlUrl | None:
        """Lease the first URL that waits, and give it; None if none does."""
        self.end_leases(now)
        while self._waiting:
            refetch_at, _, message_id = heapq.heappop(self._waiting)
            held = self.urls.get(message_id)
            if held is not None and not held.leased_until and held.url.refetch_at == refetch_at:
                self._lease(message_id, leased_until)
                return held.url
        return None

    def end_leases(self, now: float) -> None:
        """Let those wait whose leases are over."""
        while self._leases and self._leases[0][0] <= now:
            until, message_id = heapq.heappop(self._leases)
            held = self.urls.get(message_id)
            if held is not None and held.leased_until == until:
                self.leased -= 1
                held.leased_until = 0.0
                self._wait(message_id, held.url)

    def next_lease_end(self) -> float | None:
        """Give when the first lease ends, None without one; too early, if that URL has left."""
        return self._leases[0][0] if self.leased else None

    @property
    def has_waiting(self) -> bool:
        """Whether some of its URLs are in nobody's hands; see `end_leases`."""
        return len(self.urls) > self.leased

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
        self.end_leases(now)
        return QueueCounts(1, self.active, self.leased, self.completed, int(self.active > 0 or self.leased > 0))

    def _wait(self, message_id: str, url: CrawlUrl) -> None:
        heapq.heappush(self._waiting, (url.refetch_at, url.url, message_id))
        if len(self._waiting) > _COMPACTED_FROM + 2 * len(self.urls):
            waiting = ((i, held.url) for i, held in self.urls.items() if not held.leased_until)
            self._waiting = [(url.refetch_at, url.url, i) for i, url in waiting]
            heapq.heapify(self._waiting)

    def _lease(self, message_id: str, until: float) -> None:
        self.urls[message_id].leased_until = until
        self.leased += 1
        heapq.heappush(self._leases, (until, message_id))
        if len(self._leases) > _COMPACTED_FROM + 2 * self.leased:
            self._leases = [(held.leased_until, i) for i, held in self.urls.items() if held.leased_until]
            heapq.heapify(self._leases)


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
