"""Recent puts: what is being put, and what was put a moment ago, so that nothing brings an old version back.

A pack offers a URL when its message wakes, a crawler's put replaces it. Two things must not bring an old version back:
- An offer while a put of the same URL is under way is not taken: the put's end decides what there is.
- An offer after it, of a batch that began before, differs from what was put and is not taken for REMEMBERED_SECONDS. A
  pack applies a put only when its batch has ended, and tells so only then; what comes later yet is from a batch that
  its worker has given up, which ends within seconds.
So whatever is not taken is at hand already, or its message wakes again.
"""

from collections import OrderedDict
from dataclasses import dataclass

from starter.extras.frontier.buffer.queue_urls import HeldUrl
from starter.extras.frontier.crawl_url import CrawlUrl

REMEMBERED_SECONDS = 60.0


@dataclass(slots=True)
class _UrlUnderWay:
    """A URL that is being put, once or several times: its last version that was stored, as far as known here."""

    held: HeldUrl | None
    is_at_hand: bool
    puts: int = 0


class RecentPuts:
    """Puts by the id of their message; moments are seconds since the epoch."""

    def __init__(self) -> None:
        self._under_way: dict[str, _UrlUnderWay] = {}
        self._stored: OrderedDict[str, tuple[CrawlUrl | None, float]] = OrderedDict()
        """What was put last, None if it was deleted, and when; the oldest first."""

    def is_outdated(self, message_id: str, url: CrawlUrl) -> bool:
        """Whether an offer must not be taken, see above."""
        if message_id in self._under_way:
            return True
        stored = self._stored.get(message_id)
        return stored is not None and stored[0] != url

    def begin(self, message_id: str, held: HeldUrl | None) -> None:
        """Begin a put; `held` is what was at hand of its URL, and counts unless another put is under way."""
        if (under_way := self._under_way.get(message_id)) is None:
            under_way = self._under_way[message_id] = _UrlUnderWay(held, held is not None)
        under_way.puts += 1

    def keep(self, message_id: str, url: CrawlUrl | None, now: float) -> None:
        """Note what a put has stored, None if that was its end; `end` follows."""
        under_way = self._under_way[message_id]
        under_way.held = None if url is None else HeldUrl(url)
        under_way.is_at_hand = url is not None and not url.is_completed and url.refetch_at <= now
        self._stored[message_id] = (url, now)
        self._stored.move_to_end(message_id)

    def end(self, message_id: str) -> HeldUrl | None:
        """End a put; with the last one, give the URL if it is at hand again: as it was, or as it was kept."""
        under_way = self._under_way[message_id]
        under_way.puts -= 1
        if under_way.puts:
            return None
        del self._under_way[message_id]
        return under_way.held if under_way.is_at_hand else None

    def find(self, message_id: str) -> CrawlUrl | None:
        """Give a URL as it is stored, if a put tells; see `is_deleted`."""
        under_way = self._under_way.get(message_id)
        if under_way is not None and under_way.held is not None:
            return under_way.held.url
        url, _ = self._stored.get(message_id, (None, 0.0))
        return url

    def is_deleted(self, message_id: str) -> bool:
        """Return whether a URL is known to be deleted."""
        return message_id in self._stored and self._stored[message_id][0] is None

    def forget_old(self, now: float) -> None:
        """Forget what was put so long ago that no batch can still bring an older version."""
        while self._stored:
            message_id, (_, at) = next(iter(self._stored.items()))
            if at > now - REMEMBERED_SECONDS:
                return
            del self._stored[message_id]
