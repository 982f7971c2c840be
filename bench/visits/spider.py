"""`python -m bench.visits.spider visit ORDER`: Scrapy visits one page again and again; ORDER is JSON."""

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

import psutil
import scrapy
from scrapy.crawler import CrawlerProcess
from scrapy.http import Request, Response

from bench.visits.order import Order, Seen

AT_ONCE = 50

SETTINGS: dict[str, Any] = {
    "CONCURRENT_REQUESTS": AT_ONCE,
    "CONCURRENT_REQUESTS_PER_DOMAIN": AT_ONCE,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": False,
    "COOKIES_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
    "LOG_LEVEL": "ERROR",
}
"""As for a site of one's own: no pause between visits, as many at once as the bare loop has."""


class PageSpider(scrapy.Spider):
    """Follows each visit by another one, until it has been watched for as long as ordered."""

    name = "page"
    order: Order

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen = Seen()
        self._begun_at = time.monotonic()
        self._cpu = 0.0
        self._is_watched = False

    async def start(self) -> AsyncIterator[Any]:
        """Begin the visits."""
        for _ in range(AT_ONCE):
            yield self._request_page()

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        """Count a visit, and ask for the next one."""
        passed = time.monotonic() - self._begun_at
        if not self._is_watched and passed >= self.order.warmup:
            self._is_watched = True
            self._begun_at = time.monotonic()
            self._cpu = time.process_time()
        elif self._is_watched and passed >= self.order.seconds:
            self._print_seen(passed)

        self._seen.visits += self._is_watched
        self._seen.failed += self._is_watched and response.status != 200
        yield self._request_page()

    def _request_page(self) -> Request:
        return Request(self.order.find_url(0), dont_filter=True)

    def _print_seen(self, passed: float) -> None:
        self._seen.seconds = passed
        self._seen.cpu = time.process_time() - self._cpu
        self._seen.rss = psutil.Process().memory_info().rss
        print(json.dumps(asdict(self._seen)), flush=True)
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Visit as the order says; ends at once."""
    PageSpider.order = Order(**json.loads(arguments[1]))
    process = CrawlerProcess(SETTINGS)
    process.crawl(PageSpider)
    process.start()


if __name__ == "__main__":
    main(sys.argv[1:])
