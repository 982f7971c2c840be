"""The buffer: the URLs that may be fetched now, by queue, in the memory of the one process that gives them out.

A pack offers a URL when its message wakes, a crawler's put replaces it. Two things must not bring an old version back:
- An offer while a put of the same URL is under way is not taken: the put's end decides what there is.
- An offer after it, of a batch that began before, differs from what was put and is not taken for REMEMBERED_SECONDS. A
  pack applies a put only when its batch has ended, and tells so only then; what comes later yet is from a batch that
  its worker has given up, which ends within seconds.
So whatever is not taken is at hand already, or its message wakes again.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from starter.intake.frontier.crawl_queue import CrawlQueue, HeldUrl, QueueCounts
from starter.intake.frontier.crawl_url import CrawlUrl, QueueName

REMEMBERED_SECONDS = 60.0
DEFAULT_DELAY = 1.0
QUEUE_SHARE = 0.05
QUEUE_LEAST = 1000
"""How much of the room one queue may take, so that a few large ones leave some to the others; and at least how many."""


@dataclass(slots=True)
class _UrlUnderWay:
    """A URL that is being put, once or several times: its last version that was stored, as far as known here."""

    held: HeldUrl | None
    is_at_hand: bool
    puts: int = 0


class DueBuffer:
    """Holds at most `room` URLs, and `queue_room` of one queue; moments are seconds since the epoch."""

    def __init__(self, room: int, queue_room: int | None = None) -> None:
        self._room = room
        self._queue_room = max(round(room * QUEUE_SHARE), QUEUE_LEAST) if queue_room is None else queue_room
        self._size = 0
        self._default_delay = DEFAULT_DELAY
        self._queues: dict[QueueName, CrawlQueue] = {}
        self._turns: OrderedDict[QueueName, CrawlQueue] = OrderedDict()
        """Queues that may give URLs now, the one that has waited longest first."""
        self._rests: list[tuple[float, int, CrawlQueue]] = []
        self._numbers = itertools.count()
        self._puts: dict[str, _UrlUnderWay] = {}
        self._recent: OrderedDict[str, tuple[CrawlUrl | None, float]] = OrderedDict()
        """What was put last, None if it was deleted, and when; the oldest first."""

    def __len__(self) -> int:
        return self._size

    def offer(self, message_id: str, url: CrawlUrl, now: float) -> bool:
        """Take in a URL that may be fetched; an old version is not, see above. False when there is no room for it."""
        self._forget_old(now)
        recent = self._recent.get(message_id)
        if message_id in self._puts or (recent is not None and recent[0] != url):
            return True
        queue = self._find_or_begin(url.queue)
        if (held := queue.urls.get(message_id)) is not None:
            if held.url != url:  # changed by other means than a put
                queue.put(message_id, url, held.leased_until)
            return True

        return self._add(queue, message_id, HeldUrl(url))

    def begin_put(self, message_id: str, name: QueueName) -> None:
        """Hold back a URL until `end_put`, once for each put; it is no longer in process."""
        if (under_way := self._puts.get(message_id)) is None:
            held = queue.remove(message_id) if (queue := self._queues.get(name)) is not None else None
            self._size -= held is not None
            under_way = self._puts[message_id] = _UrlUnderWay(held, held is not None)
        under_way.puts += 1

    def keep_put(self, message_id: str, url: CrawlUrl | None, now: float) -> None:
        """Note what a put has stored, None if that was its end; `end_put` follows."""
        under_way = self._puts[message_id]
        under_way.held = None if url is None else HeldUrl(url)
        under_way.is_at_hand = url is not None and not url.is_completed and url.refetch_at <= now
        self._recent[message_id] = (url, now)
        self._recent.move_to_end(message_id)

    def end_put(self, message_id: str, now: float) -> None:
        """End a put; with the last one, the URL is again what it was, or what was kept."""
        under_way = self._puts[message_id]
        under_way.puts -= 1
        if under_way.puts:
            return
        del self._puts[message_id]
        if under_way.held is not None and under_way.is_at_hand:
            self._add(self._find_or_begin(under_way.held.url.queue), message_id, under_way.held)
        self._forget_old(now)

    def peek(self, message_id: str, name: QueueName) -> CrawlUrl | None:
        """Give a URL as it is stored, if that is known here."""
        if (under_way := self._puts.get(message_id)) is not None and under_way.held is not None:
            return under_way.held.url
        if message_id in self._recent:
            return self._recent[message_id][0]
        queue = self._queues.get(name)
        held = None if queue is None else queue.urls.get(message_id)
        return None if held is None else held.url

    def is_deleted(self, message_id: str) -> bool:
        """Return whether a URL is known to be deleted; `peek` gives None for one of which nothing is known, too."""
        return message_id in self._recent and self._recent[message_id][0] is None

    def take(
        self, crawl: str | None, key: str, limits: tuple[int, int], lease: float, clock: Callable[[], float]
    ) -> Generator[CrawlUrl]:
        """Give URLs of as many queues, and as many of each, as the `limits` say, 0 for all; each is leased when given.

        With a key, of that queue alone.
        """
        queues_max, urls_max = limits
        self._end_rests(clock())

        if key:
            queue = None if crawl is None else self._queues.get(QueueName(crawl, key))
            if queue is not None and self._turns.pop(queue.name, None) is not None:
                queue.is_in_turn = False
                yield from self._give(queue, urls_max, lease, clock)
            return

        served = 0
        for _ in range(len(self._turns)):
            if not self._turns or served >= queues_max > 0:
                return

            name, queue = self._turns.popitem(last=False)
            queue.is_in_turn = False

            if crawl is not None and name.crawl != crawl:
                self._line_up(queue)
                continue

            is_served = False
            for url in self._give(queue, urls_max, lease, clock):
                is_served = True
                yield url

            served += is_served

    def block(self, name: QueueName, until: float) -> None:
        """Let a queue give nothing until a moment."""
        if (queue := self._queues.get(name)) is not None:
            queue.blocked_until = until
            self._line_up(queue)

    def set_delay(self, name: QueueName | None, seconds: float) -> None:
        """Set how long a queue rests after it gave URLs; for None, all those without a delay of their own."""
        if name is None:
            self._default_delay = seconds
            for queue in self._queues.values():
                self._line_up(queue)
        elif (queue := self._queues.get(name)) is not None:
            queue.delay = seconds
            self._line_up(queue)

    def limit(self, name: QueueName, count: int) -> bool:
        """Let a queue give nothing once `count` are completed; False if there is no such queue."""
        if (queue := self._queues.get(name)) is None:
            return False
        queue.limit = count
        self._line_up(queue)
        return True

    def change(self, name: QueueName, before: CrawlUrl | None, after: CrawlUrl | None) -> None:
        """Count a URL that was stored or deleted."""
        queue = self._find_or_begin(name)
        queue.change(before, after)
        self._line_up(queue)

    def clear(self, name: QueueName) -> None:
        """Give no more URLs of a queue that is about to be deleted; what is stored of it still counts."""
        if (queue := self._queues.get(name)) is not None:
            self._size -= queue.clear()

    def drop(self, name: QueueName) -> None:
        """Forget a queue and how it was set, if it holds nothing any more."""
        queue = self._queues.get(name)
        if queue is not None and not (queue.active or queue.completed or queue.urls):
            del self._queues[name]
            self._turns.pop(name, None)
            queue.is_in_turn = False
            queue.rests_until = None

    def names(self, crawl: str) -> list[QueueName]:
        """Name the queues of a crawl."""
        return [name for name in self._queues if name.crawl == crawl]

    def list_crawls(self) -> list[str]:
        """Name the crawls."""
        return list(dict.fromkeys(name.crawl for name in self._queues))

    def list_queues(self, crawl: str, now: float, *, is_inactive_too: bool) -> Iterator[str]:
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

    def _find_or_begin(self, name: QueueName) -> CrawlQueue:
        if (queue := self._queues.get(name)) is None:
            queue = self._queues[name] = CrawlQueue(name)
        return queue

    def _add(self, queue: CrawlQueue, message_id: str, held: HeldUrl) -> bool:
        if self._size >= self._room or len(queue.urls) >= self._queue_room:
            return False
        self._size += 1
        queue.put(message_id, held.url, held.leased_until)
        self._line_up(queue)
        return True

    def _line_up(self, queue: CrawlQueue) -> None:
        """Let a queue have its turn; what it then may give is decided anew."""
        queue.rests_until = None
        if queue.urls and not queue.is_in_turn:
            queue.is_in_turn = True
            self._turns[queue.name] = queue

    def _rest(self, queue: CrawlQueue, until: float) -> None:
        queue.rests_until = until
        if queue.rest_noted != until:  # a queue that is blocked for long may be lined up often meanwhile
            queue.rest_noted = until
            heapq.heappush(self._rests, (until, next(self._numbers), queue))

    def _end_rests(self, now: float) -> None:
        while self._rests and self._rests[0][0] <= now:
            until, _, queue = heapq.heappop(self._rests)
            if queue.rest_noted == until:
                queue.rest_noted = None
            if queue.rests_until == until:
                self._line_up(queue)

    def _give(self, queue: CrawlQueue, urls_max: int, lease: float, clock: Callable[[], float]) -> Generator[CrawlUrl]:
        """Give URLs of a queue that has its turn, if it may give any; before the first, it has got its next place."""
        now = clock()
        queue.end_leases(now)
        if queue.is_limit_reached:
            return  # a change of the limit, or of what is completed, lines it up again

        if (may_give_at := queue.may_give_at(self._default_delay)) > now:
            self._rest(queue, may_give_at)
        elif not queue.has_waiting:
            if (next_lease_end := queue.next_lease_end()) is not None:
                self._rest(queue, next_lease_end)
        elif queue.leased >= urls_max > 0:
            self._line_up(queue)
        else:
            queue.gave_at = now
            self._rest(queue, queue.may_give_at(self._default_delay))
            for _ in itertools.count() if not urls_max else range(urls_max):
                if (url := queue.give(now := clock(), now + lease)) is None:
                    return
                yield url

    def _forget_old(self, now: float) -> None:
        while self._recent:
            message_id, (_, at) = next(iter(self._recent.items()))
            if at > now - REMEMBERED_SECONDS:
                return
            del self._recent[message_id]
