"""Politeness on a real server: few visits at once of one host, in either encoding, and other hosts go on meanwhile."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from activities.handlers.http.handler import http
from tests.conftest import Begin, Serve, wait_until
from tests.integration.web_site import Reply, Visit, WebSite

AT_ONCE = 2
MESSAGES = 12
PATIENCE = timedelta(seconds=25)


class Crowd:
    """Counts the visits of one host that are answered at the same time, and holds them until it is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_open = threading.Event()
        self.now = self.maximum = self.total = 0

    def answer(self, visit: Visit) -> Reply:
        """Answer once visits may end."""
        host = visit.headers["host"].partition(":")[0]
        if host != "localhost":
            return Reply(200, b"of another host")

        with self._lock:
            self.now += 1
            self.total += 1
            self.maximum = max(self.maximum, self.now)
        self.is_open.wait(timeout=20)
        with self._lock:
            self.now -= 1
        return Reply(200, b"of the host that is slow")


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A site of the test's own."""
    with WebSite() as site:
        yield site


@pytest.mark.timeout(90)
async def test_a_host_that_is_slow_gets_few_visits_at_once_and_delays_its_own_messages_alone(
    site: WebSite, serve: Serve, begin: Begin, kind: str
) -> None:
    """All of its messages are visited in the end; those of another host are not kept waiting, in the same pack too."""
    crowd = Crowd()
    site.pages["/"] = crowd.answer
    own = replace(http, kind=kind)
    async with serve(own, lanes=("short",), http_allow_private=True, http_at_once=AT_ONCE, http_timeout=PATIENCE):
        slow = [
            await begin(kind, f"slow-{number}", payload={"url": site.url("/", "localhost")})
            for number in range(MESSAGES)
        ]
        await wait_until(lambda: crowd.now == AT_ONCE, "the slow host has as many visits as it may")
        other = await begin(kind, "other", payload={"url": site.url("/")})
        await wait_until(lambda: other.has(version=1), "another host is visited")
        assert crowd.total == AT_ONCE

        crowd.is_open.set()
        for message in slow:
            await wait_until(lambda message=message: message.has(version=1), "all of the slow host's are visited")

    assert crowd.maximum == AT_ONCE
    assert crowd.total == MESSAGES
