"""The frontier on a real server: what is put is given when it is due, counted, and still there after a restart."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from shared.settings import Settings
from starter.control import Control
from starter.extras.frontier.crawl_url import CrawlUrl, QueueName
from starter.extras.frontier.frontier import Frontier, FrontierOptions, PutStatus, QueueCounts
from tests.conftest import wait_until

SOON = timedelta(seconds=2)
DAY = 86400


@contextlib.asynccontextmanager
async def running(client: Client, settings: Settings, kind: str, **options: Any) -> AsyncGenerator[Frontier]:
    """Run a frontier for the length of an `async with` block."""
    given: dict[str, Any] = {"kind": kind, "packs": 4, "drain": timedelta(seconds=5), **options}
    frontier = Frontier(client, settings, FrontierOptions(**given))
    stopping = asyncio.Event()
    task = asyncio.create_task(frontier.run(stopping))
    try:
        await wait_until(frontier.started.is_set, "the frontier serves")
        yield frontier
    finally:
        stopping.set()
        await task


def make_url(url: str, refetch_at: int = 0, crawl: str = "", **metadata: list[str]) -> CrawlUrl:
    """Describe a URL as a client does, who leaves out what he may."""
    return CrawlUrl(QueueName.of(crawl, ""), url, metadata, refetch_at)


async def discover(frontier: Frontier, *urls: str, crawl: str = "") -> list[PutStatus]:
    """Put URLs as discovered, all at once."""
    puts = (frontier.put(make_url(url, crawl=crawl), is_discovered=True) for url in urls)
    return list(await asyncio.gather(*puts))


async def put_known(frontier: Frontier, *urls: CrawlUrl) -> None:
    """Put URLs as known, which must be stored."""
    statuses = await asyncio.gather(*(frontier.put(url, is_discovered=False) for url in urls))
    assert set(statuses) <= {PutStatus.OK}


def take(
    frontier: Frontier, crawl: str | None = None, key: str = "", urls_max: int = 0, lease_seconds: int = 60
) -> list[CrawlUrl]:
    """Take all that may be fetched."""
    limits: dict[str, int] = {"queues_max": 0, "urls_max": urls_max, "lease_seconds": lease_seconds}
    return list(frontier.take(crawl, key, **limits))


async def read(frontier: Frontier, crawl: str = "", key: str = "") -> dict[str, CrawlUrl]:
    """Read what is stored, by URL."""
    return {url.url: url async for url in frontier.read_urls(crawl, key)}


def name(urls: Iterable[CrawlUrl]) -> list[str]:
    """Give the URLs alone."""
    return sorted(url.url for url in urls)


async def test_a_url_is_put_taken_put_back_and_completed(client: Client, settings: Settings, kind: str) -> None:
    """It is given once at a time, with its metadata, keeps the date of its first put, and then comes no more."""
    async with running(client, settings, kind) as frontier:
        frontier.set_delay(None, 0)
        assert await discover(frontier, "http://a.org/1") == [PutStatus.OK]
        assert await discover(frontier, "http://a.org/1") == [PutStatus.SKIPPED]
        (taken,) = take(frontier)
        assert frontier.count("", "") == QueueCounts(1, 1, 1, 0, 1)
        assert take(frontier) == []

        await put_known(frontier, make_url("http://a.org/1", int(time.time()), status=["200"]))
        (again,) = take(frontier)
        assert (again.metadata, again.created_at) == ({"status": ["200"]}, taken.created_at)

        await put_known(frontier, make_url("http://a.org/1"))
        assert take(frontier) == []
        assert await discover(frontier, "http://a.org/1") == [PutStatus.SKIPPED]
        assert frontier.count("", "a.org") == QueueCounts(1, 0, 0, 1, 0)
        found = await frontier.find(QueueName("", ""), "http://a.org/1")
        assert found is not None
        assert (found.is_completed, found.created_at) == (True, taken.created_at)
        assert await frontier.find(QueueName("", ""), "http://a.org/2") is None


async def test_a_url_comes_when_its_date_has_come(client: Client, settings: Settings, kind: str) -> None:
    """Not before; the message's own timer brings it."""
    async with running(client, settings, kind) as frontier:
        date = int(time.time()) + 4
        await put_known(frontier, make_url("http://a.org/later", date), make_url("http://b.org/far", date + DAY))
        assert frontier.count("", "").active == 2

        found = await wait_until(lambda: take(frontier), "the URL is due")

        assert name(found) == ["http://a.org/later"]
        assert time.time() >= date


async def test_what_is_put_again_as_known_is_counted_once(client: Client, settings: Settings, kind: str) -> None:
    """Also by a process that has not seen it before, and when it was completed."""
    tomorrow = int(time.time()) + DAY
    urls = [make_url(f"http://a.org/{number}", tomorrow if number % 2 else 0) for number in range(6)]

    async with running(client, settings, kind) as frontier:
        await put_known(frontier, *urls)
        created = await read(frontier)

    async with running(client, settings, kind) as frontier:
        assert await discover(frontier, *(url.url for url in urls)) == [PutStatus.SKIPPED] * 6
        await put_known(frontier, *(replace(url, refetch_at=tomorrow + 1) for url in urls))
        assert frontier.count("", "") == QueueCounts(1, 6, 0, 0, 1)
        found = await read(frontier)

    assert {url: (each.created_at, each.refetch_at) for url, each in found.items()} == {
        url: (each.created_at, tomorrow + 1) for url, each in created.items()
    }


async def test_a_restart_finds_everything_and_counts_it_exactly(client: Client, settings: Settings, kind: str) -> None:
    """What may be fetched is at hand at once, leases are forgotten, and puts may come while all is read."""
    now = int(time.time())
    async with running(client, settings, kind) as frontier:
        await discover(frontier, *(f"http://{number % 5}.org/{number}" for number in range(100)))
        await put_known(frontier, *(make_url(f"http://{number % 5}.org/{number}") for number in range(20)))
        await put_known(
            frontier, *(make_url(f"http://{number % 5}.org/{number}", now + DAY) for number in range(20, 40))
        )
        await discover(frontier, "http://x.org/", crawl="other")
        take(frontier)
        before = frontier.count("", "")

    async with running(client, settings, kind, packs=9) as frontier:  # they stay as many as they are
        statuses = await discover(frontier, *(f"http://{number % 5}.org/{number}" for number in range(90, 110)))
        assert statuses == [PutStatus.SKIPPED] * 10 + [PutStatus.OK] * 10
        await put_known(frontier, make_url("http://0.org/40"))
        await wait_until(lambda: frontier.count("", "").active == 89, "all is counted")
        assert frontier.count("", "") == QueueCounts(5, before.active + 9, 0, 21, 5)
        assert len(take(frontier, "")) == 69
        assert name(take(frontier, "other")) == ["http://x.org/"]
        assert sorted(frontier.list_crawls()) == ["DEFAULT", "other"]
        assert sorted(frontier.list_queues("", start=0, size=3, is_inactive_too=False)) == ["0.org", "1.org", "2.org"]


async def test_a_deleted_queue_is_gone_and_may_be_put_anew(
    client: Client, settings: Settings, kind: str, control: Control
) -> None:
    """The number is that of the active ones; other queues and crawls stay."""
    async with running(client, settings, kind) as frontier:
        urls = [f"http://a.org/{number}" for number in range(30)]
        await discover(frontier, *urls, "http://b.org/")
        await discover(frontier, *urls, crawl="other")
        await put_known(frontier, *map(make_url, urls[:10]))
        frontier.block(QueueName("", "a.org"), int(time.time()) + DAY)

        assert await frontier.delete("", "a.org") == 20

        assert name(take(frontier, "")) == ["http://b.org/"]
        assert frontier.count("", "") == QueueCounts(1, 1, 1, 0, 1)
        assert name((await read(frontier)).values()) == ["http://b.org/"]
        assert (await control.show(kind, urls[0])).listed.state == "stopped"
        assert await discover(frontier, *urls) == [PutStatus.OK] * 30
        assert len(take(frontier, "", "a.org")) == 30, "blocks go with their queue"
        assert await frontier.delete("other", "") == 30
        assert frontier.list_crawls() == ["DEFAULT"]
        assert await frontier.delete("other", "") == 0
    async with running(client, settings, kind) as frontier:
        await wait_until(lambda: frontier.count("", "").active == 31, "all is counted")
        assert frontier.list_crawls() == ["DEFAULT"]


async def test_purging_deletes_what_is_older(client: Client, settings: Settings, kind: str) -> None:
    """By the first put of each, completed or not."""
    async with running(client, settings, kind) as frontier:
        await discover(frontier, "http://a.org/old", "http://b.org/old")
        await put_known(frontier, make_url("http://a.org/old"))
        await asyncio.sleep(1.1)  # dates are whole seconds
        await discover(frontier, "http://a.org/new")
        new = (await read(frontier))["http://a.org/new"].created_at

        assert await frontier.purge("", "a.org", new) == 1
        assert name((await read(frontier)).values()) == ["http://a.org/new", "http://b.org/old"]
        assert await frontier.purge("", "", new) == 1
        assert await frontier.purge("", "", new) == 0
        assert frontier.count("", "").active == 1


@pytest.mark.long
async def test_a_full_buffer_loses_nothing(client: Client, settings: Settings, kind: str) -> None:
    """What finds no room is offered again, until all have been fetched."""
    async with running(client, settings, kind, buffer=10, offer=SOON) as frontier:
        frontier.set_delay(None, 0)
        urls = [f"http://{number % 5}.org/{number}" for number in range(60)]
        assert await discover(frontier, *urls) == [PutStatus.OK] * 60
        done: set[str] = set()

        async def fetch() -> bool:
            taken = take(frontier)
            assert len(taken) <= 10
            assert done.isdisjoint(each.url for each in taken)
            await put_known(frontier, *(replace(each, refetch_at=0) for each in taken))
            done.update(each.url for each in taken)
            return len(done) == 60

        await wait_until(fetch, "all are fetched")
        assert frontier.count("", "") == QueueCounts(5, 0, 0, 60, 0)


@pytest.mark.long
async def test_an_old_version_never_comes_back(client: Client, settings: Settings, kind: str) -> None:
    """Messages wake and are offered all the time, while newer versions are put."""
    versions = dict.fromkeys((f"http://{number}.org/" for number in range(20)), 0)
    async with running(client, settings, kind, packs=2, offer=timedelta(seconds=1)) as frontier:
        frontier.set_delay(None, 0)
        await discover(frontier, *versions)

        give_up_at = time.monotonic() + 8
        while time.monotonic() < give_up_at or sum(versions.values()) <= 100:  # longer on a slow machine
            for url in take(frontier, lease_seconds=1):
                assert int(url.metadata.get("version", ["0"])[0]) == versions[url.url]
                versions[url.url] += 1
                date = int(time.time()) + versions[url.url] % 3
                newer = make_url(url.url, date, version=[str(versions[url.url])])
                await put_known(frontier, newer)
            await asyncio.sleep(0.02)

    assert sum(versions.values()) > 100


async def test_puts_of_one_url_take_effect_in_their_order(client: Client, settings: Settings, kind: str) -> None:
    """However many are under way at once."""
    date = int(time.time()) + DAY
    async with running(client, settings, kind) as frontier:
        await put_known(frontier, *(make_url("http://a.org/", date, version=[str(number)]) for number in range(50)))
        found = await frontier.find(QueueName("", ""), "http://a.org/")
        assert found is not None
        assert found.metadata == {"version": ["49"]}
        assert frontier.count("", "").active == 1


@pytest.mark.parametrize(
    "url",
    [
        make_url(""),
        make_url("http:///path"),
        CrawlUrl(QueueName("", "key"), ""),
        CrawlUrl(QueueName("", "k" * 256), "http://a.org/"),
        make_url("http://a.org/" + "x" * 5000),
        make_url("http://a.org/", big=["x" * 5000]),
    ],
    ids=["nothing", "no host", "no url", "long key", "long url", "much metadata"],
)
@pytest.mark.parametrize("is_discovered", [True, False])
async def test_what_can_not_be_stored_is_skipped(
    client: Client,
    settings: Settings,
    url: CrawlUrl,
    is_discovered: bool,  # noqa: FBT001 — pytest's own
) -> None:
    """There is no use in sending it again; no server is needed to say so."""
    frontier = Frontier(client, settings, FrontierOptions())
    assert await frontier.put(url, is_discovered=is_discovered) is PutStatus.SKIPPED


async def test_what_just_fits_can_also_be_changed(client: Client, settings: Settings, kind: str) -> None:
    """A pack would ignore a revision that its dates make too large."""
    async with running(client, settings, kind) as frontier:
        for size in range(settings.payload_max_bytes - 150, settings.payload_max_bytes, 10):
            url = make_url(f"http://a.org/{size}", int(time.time()) + DAY, big=["x" * size])
            if await frontier.put(url, is_discovered=True) is PutStatus.OK:
                await put_known(frontier, url)
                found = await frontier.find(url.queue, url.url)
                assert found is not None
                assert found.refetch_at == url.refetch_at
        assert 0 < frontier.count("", "").active < 15


async def test_before_it_serves_a_put_fails(client: Client, settings: Settings) -> None:
    """So the client sends it again."""
    frontier = Frontier(client, settings, FrontierOptions())
    assert await discover(frontier, "http://a.org/") == [PutStatus.FAIL]
    assert frontier.gap == "starting"


async def test_an_inactive_frontier_takes_in_and_gives_nothing(client: Client, settings: Settings, kind: str) -> None:
    """Until it is active again."""
    async with running(client, settings, kind) as frontier:
        frontier.is_active = False
        assert await discover(frontier, "http://a.org/") == [PutStatus.OK]
        assert take(frontier) == []
        frontier.is_active = True
        assert name(take(frontier)) == ["http://a.org/"]


async def test_no_put_fails_while_the_server_answers(client: Client, settings: Settings, kind: str) -> None:
    """Whenever it comes, also when the call before to its pack has just ended."""
    async with running(client, settings, kind, packs=2) as frontier:
        statuses: list[PutStatus] = []

        async def discover_some(prefix: int) -> None:
            for number in range(50):
                statuses.extend(await discover(frontier, f"http://a.org/{prefix}/{number}"))

        await asyncio.gather(*map(discover_some, range(40)))
        assert statuses == [PutStatus.OK] * 2000
