"""`dormice frontier` in trouble: it and the server are killed while crawlers go on fetching."""

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from shared.settings import Settings
from starter.extras.frontier.wire import urlfrontier_pb2 as wire
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.support.crawlers import OK, SKIPPED, Crawler, crawling
from tests.support.processes import frontier_process, kill_and_restart

pytestmark = [pytest.mark.fault, pytest.mark.heavy, pytest.mark.long, pytest.mark.timeout(300)]

URLS = 2000
HOSTS = 50
CRAWLERS = 4
FETCHES = 3
GRACE_SECONDS = 12.0
"""How long after a kill, and after the next begin, a fetch more is no fault: its put may have been lost."""
ON_THE_WAY_SECONDS = 3.0
"""How much later than it was given, and leased, a URL may come to its crawler."""


@dataclass(slots=True)
class FetchLedger:
    """What crawlers did, by their own account."""

    fetched: Counter[str] = field(default_factory=Counter[str])
    stored: Counter[str] = field(default_factory=Counter[str])
    """Puts after a fetch that were acknowledged."""
    completed: set[str] = field(default_factory=set[str])
    """URLs whose completion was acknowledged."""
    fetched_late: list[str] = field(default_factory=list[str])
    """URLs that were given although their completion had been acknowledged."""
    fetched_more: list[str] = field(default_factory=list[str])
    """URLs that were given while a crawler had them on lease, though nothing had been killed lately."""
    given_until: dict[str, float] = field(default_factory=dict[str, float])
    """When the lease of a URL ends that a crawler has."""
    uncertain_until: float = 0.0

    def note_fetch(self, url: str, lease: float) -> None:
        """Note that a URL was given to a crawler."""
        now = time.monotonic()
        if url in self.completed:
            self.fetched_late.append(url)
        if now < self.given_until.get(url, 0.0) and now > self.uncertain_until:
            self.fetched_more.append(url)
        self.given_until[url] = now + lease - ON_THE_WAY_SECONDS
        self.fetched[url] += 1


@dataclass(slots=True)
class FetchingCrawler:
    """A crawler that connects anew whenever a call fails, and each half a minute in the middle of its calls.

    It forgets what it had then: what was not stored is given again.
    """

    address: str
    ledger: FetchLedger
    lease: int = 20

    async def run(self, stopping: asyncio.Event) -> None:
        """Fetch until told to stop."""
        while not stopping.is_set():
            with contextlib.suppress(grpc.RpcError, TimeoutError):
                async with crawling(self.address) as crawler, asyncio.timeout(30):
                    while not stopping.is_set():
                        await self._fetch_some(crawler)
            await asyncio.sleep(0.2)

    async def _fetch_some(self, crawler: Crawler) -> None:
        params = wire.GetParams(max_urls_per_queue=5, max_queues=20, delay_requestable=self.lease)
        params.anyCrawlID.SetInParent()
        given: dict[str, wire.URLInfo] = {}

        async for info in crawler.stub.GetURLs(params, timeout=5):
            self.ledger.note_fetch(info.url, self.lease)
            given[info.url] = info

        if not given:
            await asyncio.sleep(0.1)
            return

        items = [self._to_item(info) for info in given.values()]
        for url in given:
            self.ledger.given_until.pop(url, None)  # from now on it may be given to another before this one hears of it

        async for ack in crawler.stub.PutURLs(iter(items), timeout=20):
            if ack.status == OK:
                self._note_stored(ack.ID, items)

    def _to_item(self, info: wire.URLInfo) -> wire.URLItem:
        """Say that a URL was fetched: it is to be fetched again at once, or never more.

        How often it was is in its metadata, as crawlers keep what they need.
        """
        count = 1 + int(info.metadata["fetched"].values[0] if "fetched" in info.metadata else 0)
        again = wire.URLInfo(url=info.url, key=info.key, metadata={"fetched": wire.StringList(values=[str(count)])})
        date = 0 if count >= FETCHES else int(time.time())
        return wire.URLItem(known=wire.KnownURLItem(info=again, refetchable_from_date=date))

    def _note_stored(self, url: str, items: list[wire.URLItem]) -> None:
        (item,) = [each for each in items if each.known.info.url == url]
        self.ledger.stored[url] += 1
        if not item.known.refetchable_from_date:
            self.ledger.completed.add(url)


async def _discover(address: str, urls: set[str]) -> None:
    """Put URLs as discovered until each is acknowledged, whatever is killed meanwhile."""
    left = set(urls)

    async def send() -> AsyncIterator[wire.URLItem]:
        for url in sorted(left):
            yield wire.URLItem(discovered=wire.DiscoveredURLItem(info=wire.URLInfo(url=url)))

    while left:
        with contextlib.suppress(grpc.RpcError, TimeoutError):
            async with crawling(address) as crawler:
                async for ack in crawler.stub.PutURLs(send(), timeout=20):
                    if ack.status in (OK, SKIPPED):
                        left.discard(ack.ID)


async def _keep_serving(
    server: EmbeddedServer, settings: Settings, address: str, kind: str, kills: "asyncio.Queue[None]"
) -> None:
    """Run a frontier, kill it whenever asked to, and run another."""
    arguments = ("--listen", address, "--kind", kind, "--packs", "8")
    while True:
        async with frontier_process(server, settings, *arguments) as (process, _):
            await kills.get()
            process.kill()
            await process.wait()


async def _hurt(server: EmbeddedServer, kills: "asyncio.Queue[None]", ledger: FetchLedger, address: str) -> None:
    """Kill the frontier three times and the server once, each time after some URLs were fetched."""
    for number in range(4):
        before = ledger.stored.total()
        await wait_until(lambda: ledger.stored.total() > before + 300, "URLs are fetched and put", seconds=60)  # noqa: B023 — awaited here
        ledger.uncertain_until = float("inf")

        if number == 1:
            await kill_and_restart(server)
        else:
            kills.put_nowait(None)
            await asyncio.sleep(0.5)
            ledger.given_until.clear()  # leases end with their process

        async with crawling(address):
            ledger.uncertain_until = time.monotonic() + GRACE_SECONDS


async def _has_completed_all(crawler: Crawler) -> bool:
    return (await crawler.stats())[3] == URLS


async def test_urls_survive_the_kills_of_frontier_and_server(settings: Settings, tmp_path: Path) -> None:
    """No acknowledged put is lost, each URL ends completed with its fetches, and is not given again after that."""
    urls = {f"http://host{number % HOSTS}.org/{number}" for number in range(URLS)}
    address = f"127.0.0.1:{find_free_port()}"
    kind = f"kind-{uuid.uuid4().hex[:8]}"
    ledger = FetchLedger()
    stopping = asyncio.Event()
    kills = asyncio.Queue[None]()
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)
    began = time.monotonic()
    async with run_embedded(options) as server, asyncio.TaskGroup() as alongside:
        serving = alongside.create_task(_keep_serving(server, settings, address, kind, kills))
        discovering = alongside.create_task(_discover(address, urls))
        async with crawling(address) as crawler:
            await crawler.stub.SetDelay(wire.QueueDelayParams(delay_requestable=0))
        crawlers = [alongside.create_task(FetchingCrawler(address, ledger).run(stopping)) for _ in range(CRAWLERS)]
        try:
            await _hurt(server, kills, ledger, address)
            await discovering
            async with crawling(address) as crawler:
                await wait_until(lambda: _has_completed_all(crawler), "all are completed", seconds=120)
                stopping.set()
                await asyncio.gather(*crawlers)
                stored = {item.known.info.url: item for item in await crawler.list_urls(size=2 * URLS)}
                counts = await crawler.stats()
        finally:
            print(time.monotonic() - began, ledger.stored.total(), len(ledger.completed))  # noqa: T201 — as below
            print((tmp_path / "frontier.log").read_text()[-3000:])  # noqa: T201 — shown when it fails
            serving.cancel()
            for crawling_on in crawlers:
                crawling_on.cancel()

    assert stored.keys() == urls
    assert all(item.known.refetchable_from_date == 0 for item in stored.values())
    assert counts == (HOSTS, 0, 0, URLS)
    assert ledger.completed <= urls
    assert ledger.fetched_late == []
    assert ledger.fetched_more == []
    assert min(ledger.fetched.values()) >= FETCHES
