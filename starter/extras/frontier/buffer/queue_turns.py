"""Turns: which queue gives URLs next, so that each comes to its turn, and none before its rest is over."""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Generator

from starter.extras.frontier.buffer.crawl_queue import CrawlQueue
from starter.extras.frontier.crawl_url import CrawlUrl, QueueName

DEFAULT_DELAY = 1.0


class QueueTurns:
    """The queues that may give URLs, in their order; moments are seconds since the epoch."""

    def __init__(self) -> None:
        self.default_delay = DEFAULT_DELAY
        """How long a queue rests after it gave URLs, if it has no delay of its own."""
        self._turns: OrderedDict[QueueName, CrawlQueue] = OrderedDict()
        """Queues that may give URLs now, the one that has waited longest first."""
        self._rests: list[tuple[float, int, CrawlQueue]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._turns)

    def line_up(self, queue: CrawlQueue) -> None:
        """Let a queue have its turn; what it then may give is decided anew."""
        queue.rests_until = None
        if queue.urls:
            self._turns.setdefault(queue.name, queue)

    def drop(self, queue: CrawlQueue) -> None:
        """Let a queue have no turn any more."""
        self._turns.pop(queue.name, None)
        queue.rests_until = None

    def pop(self, name: QueueName) -> CrawlQueue | None:
        """Give the named queue if it is its turn; it has none any more."""
        return self._turns.pop(name, None)

    def pop_first(self) -> CrawlQueue:
        """Give the queue that has waited longest; it has no turn any more. Raises KeyError if there is none."""
        _, queue = self._turns.popitem(last=False)
        return queue

    def end_rests(self, now: float) -> None:
        """Line up the queues that have rested until now."""
        while self._rests and self._rests[0][0] <= now:
            until, _, queue = heapq.heappop(self._rests)
            if queue.rest_noted == until:
                queue.rest_noted = None
            if queue.rests_until == until:
                self.line_up(queue)

    def give(self, queue: CrawlQueue, urls_max: int, lease: float, clock: Callable[[], float]) -> Generator[CrawlUrl]:
        """Give URLs of a queue that had its turn, if it may give any; before the first, it has got its next place."""
        now = clock()
        queue.urls.end_leases(now)
        if queue.is_limit_reached:
            return  # a change of the limit, or of what is completed, lines it up again

        if (may_give_at := queue.may_give_at(self.default_delay)) > now:
            self._rest(queue, may_give_at)
        elif not queue.urls.has_waiting:
            if (next_lease_end := queue.urls.next_lease_end()) is not None:
                self._rest(queue, next_lease_end)
        elif queue.urls.leased >= urls_max > 0:
            self.line_up(queue)
        else:
            queue.gave_at = now
            self._rest(queue, queue.may_give_at(self.default_delay))
            for _ in itertools.count() if not urls_max else range(urls_max):
                if (url := queue.urls.give(now := clock(), now + lease)) is None:
                    return
                yield url

    def _rest(self, queue: CrawlQueue, until: float) -> None:
        queue.rests_until = until
        if queue.rest_noted != until:  # a queue that is blocked for long may be lined up often meanwhile
            queue.rest_noted = until
            heapq.heappush(self._rests, (until, next(self._numbers), queue))
