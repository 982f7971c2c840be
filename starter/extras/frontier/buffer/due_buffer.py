"""The buffer: takes in URLs that may be fetched, as long as there is room, and gives them out by queue in turns."""

from collections.abc import Callable, Generator

from starter.extras.frontier.buffer.crawl_queue import CrawlQueue, CrawlQueues
from starter.extras.frontier.buffer.queue_turns import QueueTurns
from starter.extras.frontier.buffer.queue_urls import HeldUrl
from starter.extras.frontier.buffer.recent_puts import RecentPuts
from starter.extras.frontier.crawl_url import CrawlUrl, QueueName

QUEUE_SHARE = 0.05
QUEUE_MIN = 1000
"""How much of the room one queue may take, so that a few large ones leave some to the others; and at least how many."""


class DueBuffer:
    """Holds at most `room` URLs, and `queue_room` of one queue; moments are seconds since the epoch."""

    def __init__(self, room: int, queue_room: int | None = None) -> None:
        self._room = room
        self._queue_room = max(round(room * QUEUE_SHARE), QUEUE_MIN) if queue_room is None else queue_room
        self._size = 0
        self.queues = CrawlQueues()
        """Those that hold URLs, or of which some are stored, or that somebody has set."""
        self._turns = QueueTurns()
        self._puts = RecentPuts()

    def __len__(self) -> int:
        return self._size

    def offer(self, message_id: str, url: CrawlUrl, now: float) -> bool:
        """Take in a URL that may be fetched; an old version is not, see RecentPuts. False without room for it."""
        self._puts.forget_old(now)
        if self._puts.is_outdated(message_id, url):
            return True

        queue = self.queues.find_or_begin(url.queue)
        if (held := queue.urls.find(message_id)) is not None:
            if held.url != url:  # changed by other means than a put
                queue.urls.put(message_id, url, held.leased_until)
            return True

        return self._add(queue, message_id, HeldUrl(url))

    def begin_put(self, message_id: str, name: QueueName) -> None:
        """Hold back a URL until `end_put`, once for each put; it is no longer in process."""
        queue = self.queues.find(name)
        held = None if queue is None else queue.urls.remove(message_id)
        self._size -= held is not None
        self._puts.begin(message_id, held)

    def keep_put(self, message_id: str, url: CrawlUrl | None, now: float) -> None:
        """Note what a put has stored, None if that was its end; `end_put` follows."""
        self._puts.keep(message_id, url, now)

    def end_put(self, message_id: str, now: float) -> None:
        """End a put; with the last one, the URL is again what it was, or what was kept."""
        if (held := self._puts.end(message_id)) is not None:
            self._add(self.queues.find_or_begin(held.url.queue), message_id, held)
        self._puts.forget_old(now)

    def peek(self, message_id: str, name: QueueName) -> CrawlUrl | None:
        """Give a URL as it is stored, if that is known here."""
        if (url := self._puts.find(message_id)) is not None:
            return url
        if self._puts.is_deleted(message_id):
            return None
        queue = self.queues.find(name)
        held = None if queue is None else queue.urls.find(message_id)
        return None if held is None else held.url

    def is_deleted(self, message_id: str) -> bool:
        """Return whether a URL is known to be deleted; `peek` gives None for one of which nothing is known, too."""
        return self._puts.is_deleted(message_id)

    def take(
        self, crawl: str | None, key: str, limits: tuple[int, int], lease: float, clock: Callable[[], float]
    ) -> Generator[CrawlUrl]:
        """Give URLs of as many queues, and as many of each, as the `limits` say, 0 for all; each is leased when given.

        With a key, of that queue alone.
        """
        queues_max, urls_max = limits
        self._turns.end_rests(clock())

        if key:
            queue = None if crawl is None else self._turns.pop(QueueName(crawl, key))
            if queue is not None:
                yield from self._turns.give(queue, urls_max, lease, clock)
            return

        served = 0
        for _ in range(len(self._turns)):
            if not self._turns or served >= queues_max > 0:
                return

            queue = self._turns.pop_first()
            if crawl is not None and queue.name.crawl != crawl:
                self._turns.line_up(queue)
                continue

            is_served = False
            for url in self._turns.give(queue, urls_max, lease, clock):
                is_served = True
                yield url

            served += is_served

    def block(self, name: QueueName, until: float) -> None:
        """Let a queue give nothing until a moment."""
        if (queue := self.queues.find(name)) is not None:
            queue.blocked_until = until
            self._turns.line_up(queue)

    def set_delay(self, name: QueueName | None, seconds: float) -> None:
        """Set how long a queue rests after it gave URLs; for None, all those without a delay of their own."""
        if name is None:
            self._turns.default_delay = seconds
            for queue in self.queues:
                self._turns.line_up(queue)
        elif (queue := self.queues.find(name)) is not None:
            queue.delay = seconds
            self._turns.line_up(queue)

    def limit(self, name: QueueName, count: int) -> bool:
        """Let a queue give nothing once `count` are completed; False if there is no such queue."""
        if (queue := self.queues.find(name)) is None:
            return False
        queue.limit = count
        self._turns.line_up(queue)
        return True

    def change(self, name: QueueName, before: CrawlUrl | None, after: CrawlUrl | None) -> None:
        """Count a URL that was stored or deleted."""
        queue = self.queues.find_or_begin(name)
        queue.change(before, after)
        self._turns.line_up(queue)

    def clear(self, name: QueueName) -> None:
        """Give no more URLs of a queue that is about to be deleted; what is stored of it still counts."""
        if (queue := self.queues.find(name)) is not None:
            self._size -= queue.urls.clear()

    def drop(self, name: QueueName) -> None:
        """Forget a queue and how it was set, if it holds nothing any more."""
        queue = self.queues.find(name)
        if queue is not None and queue.is_empty:
            self.queues.drop(name)
            self._turns.drop(queue)

    def _add(self, queue: CrawlQueue, message_id: str, held: HeldUrl) -> bool:
        if self._size >= self._room or len(queue.urls) >= self._queue_room:
            return False
        self._size += 1
        queue.urls.put(message_id, held.url, held.leased_until)
        self._turns.line_up(queue)
        return True
