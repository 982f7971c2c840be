"""The URLs of one queue that are at hand: those that wait in their order, and those in somebody's hands."""

import heapq
from dataclasses import dataclass, field

from starter.extras.frontier.crawl_url import CrawlUrl

_COMPACTED_FROM = 32


@dataclass(slots=True)
class HeldUrl:
    """A URL at hand; until `leased_until` it is in somebody's hands, and 0 when it is in nobody's."""

    url: CrawlUrl
    leased_until: float = 0.0


@dataclass(slots=True)
class QueueUrls:
    """URLs by the id of their message; heaps keep what has left, until it comes up or is too much.

    Moments are seconds since the epoch.
    """

    leased: int = 0
    """How many are in somebody's hands; see `end_leases`."""
    _held: dict[str, HeldUrl] = field(default_factory=dict[str, HeldUrl])
    _waiting: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """(refetch_at, url, id): the order of the reference."""
    _leases: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])

    def __len__(self) -> int:
        return len(self._held)

    @property
    def has_waiting(self) -> bool:
        """Whether some are in nobody's hands; see `end_leases`."""
        return len(self._held) > self.leased

    def find(self, message_id: str) -> HeldUrl | None:
        """Give a URL, if it is there."""
        return self._held.get(message_id)

    def put(self, message_id: str, url: CrawlUrl, leased_until: float = 0.0) -> None:
        """Take a URL in, in place of its version before."""
        self.remove(message_id)
        self._held[message_id] = HeldUrl(url)
        if leased_until:
            self._lease(message_id, leased_until)
        else:
            self._wait(message_id, url)

    def remove(self, message_id: str) -> HeldUrl | None:
        """Let a URL go, and give it if it was there."""
        held = self._held.pop(message_id, None)
        if held is not None and held.leased_until:
            self.leased -= 1
        return held

    def clear(self) -> int:
        """Let all go; give their number."""
        count = len(self._held)
        self._held = {}
        self._waiting = []
        self._leases = []
        self.leased = 0
        return count

    def give(self, now: float, leased_until: float) -> CrawlUrl | None:
        """Lease the first URL that waits, and give it; None if none does."""
        self.end_leases(now)
        while self._waiting:
            refetch_at, _, message_id = heapq.heappop(self._waiting)
            held = self._held.get(message_id)
            if held is not None and not held.leased_until and held.url.refetch_at == refetch_at:
                self._lease(message_id, leased_until)
                return held.url
        return None

    def end_leases(self, now: float) -> None:
        """Let those wait whose leases are over."""
        while self._leases and self._leases[0][0] <= now:
            until, message_id = heapq.heappop(self._leases)
            held = self._held.get(message_id)
            if held is not None and held.leased_until == until:
                self.leased -= 1
                held.leased_until = 0.0
                self._wait(message_id, held.url)

    def next_lease_end(self) -> float | None:
        """Give when the first lease ends, None without one; too early, if that URL has left."""
        return self._leases[0][0] if self.leased else None

    def _wait(self, message_id: str, url: CrawlUrl) -> None:
        heapq.heappush(self._waiting, (url.refetch_at, url.url, message_id))
        if len(self._waiting) > _COMPACTED_FROM + 2 * len(self._held):
            waiting = ((i, held.url) for i, held in self._held.items() if not held.leased_until)
            self._waiting = [(url.refetch_at, url.url, i) for i, url in waiting]
            heapq.heapify(self._waiting)

    def _lease(self, message_id: str, until: float) -> None:
        self._held[message_id].leased_until = until
        self.leased += 1
        heapq.heappush(self._leases, (until, message_id))
        if len(self._leases) > _COMPACTED_FROM + 2 * self.leased:
            self._leases = [(held.leased_until, i) for i, held in self._held.items() if held.leased_until]
            heapq.heapify(self._leases)
