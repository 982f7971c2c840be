"""`dormice frontier` as crawlers meet it: the interface of URLFrontier, and what a client may do wrong."""

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.request import urlopen

import grpc
import pytest
from google.protobuf import json_format
from grpc import aio
from temporalio.client import Client

from activities.idle.capacity import Capacity
from shared.lanes import task_queue
from shared.settings import Settings
from starter.extras.frontier.wire import urlfrontier_pb2 as wire
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port
from tests.acceptance.conftest import Run
from tests.conftest import wait_until
from tests.support.crawlers import OK, SKIPPED, Crawler, crawling, now
from tests.support.processes import frontier_process

pytestmark = pytest.mark.xdist_group("frontier")  # one process answers most of these

HOUR = 3600
SERVICE = "/urlfrontier.URLFrontier/"


def make_settings() -> Settings:
    """Give settings with task queues that nobody else has."""
    return Settings(task_queue_prefix=f"test-{uuid.uuid4().hex[:10]}", patience=timedelta(seconds=20))


def unused_kind() -> str:
    """Name a kind that nobody else has."""
    return f"kind-{uuid.uuid4().hex[:10]}"


@pytest.fixture(scope="module")
async def address(server: EmbeddedServer) -> AsyncIterator[str]:
    """Where the frontier of this module listens; each test has a crawl of its own on it."""
    async with frontier_process(server, make_settings(), "--kind", unused_kind(), "--packs", "10") as (_, address):
        yield address


@pytest.fixture
async def crawler(address: str) -> AsyncGenerator[Crawler]:
    """A crawler with a crawl of this test's own."""
    async with crawling(address, uuid.uuid4().hex) as connected:
        yield connected


async def test_a_completed_url_is_not_given_again(crawler: Crawler) -> None:
    """It is counted, and can still be looked up."""
    url = "http://key1.com/"

    assert await crawler.put(crawler.known(url, 0)) == [(url, OK)]

    assert await crawler.take("key1.com", urls=1, lease=2) == []
    assert await crawler.stats("key1.com") == (1, 0, 0, 1)
    assert (await crawler.status(url)).known.refetchable_from_date == 0
    assert await crawler.put(crawler.discovered(url)) == [(url, SKIPPED)]
    assert await crawler.put(crawler.known(url, now())) == [(url, OK)]
    assert await crawler.take_all(1) == [url]


async def test_the_urls_of_a_queue_come_in_the_order_of_their_dates(crawler: Crawler) -> None:
    """Not in the order in which they were put; what is due later does not come."""
    later, sooner, not_yet = (f"http://key1.com/{name}" for name in ("later", "sooner", "not-yet"))
    dates = {later: now(), sooner: now() - 10_000, not_yet: now() + HOUR}

    await crawler.put(*(crawler.known(url, date, "key1.com") for url, date in dates.items()))

    assert await crawler.take("key1.com", urls=2, lease=300) == [sooner, later]
    assert await crawler.stats() == (1, 3, 2, 0)


async def test_a_url_is_held_until_its_lease_ends(crawler: Crawler) -> None:
    """Then it is given again; a put of it as known ends the lease; a repeated discovery is skipped."""
    url = "http://key1.com/"
    first, second = await crawler.put(crawler.discovered(url, "key1.com"), crawler.discovered(url, "key1.com"))
    assert {first, second} == {(url, OK), (url, SKIPPED)}
    assert await crawler.list_queues() == ["key1.com"]

    assert await crawler.take("key1.com", urls=1, lease=2) == [url]
    assert await crawler.stats("key1.com") == (1, 1, 1, 0)
    assert await crawler.take("key1.com", urls=1, lease=2) == []

    async def is_free() -> bool:
        return await crawler.stats("key1.com") == (1, 1, 0, 0)

    await wait_until(is_free, "the lease has ended")
    assert await crawler.take_all(1, "key1.com") == [url]
    assert await crawler.put(crawler.known(url, now() + HOUR, "key1.com")) == [(url, OK)]
    assert await crawler.stats("key1.com") == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://gac.icann.org?language_id=9", "gac.icann.org"),
        ("https://example.org:8443/a", "example.org"),
        ("http://example.net/a?b=c", "example.net"),
        ("example.com&x", "example.com"),
    ],
)
async def test_without_a_key_the_host_names_the_queue(crawler: Crawler, url: str, key: str) -> None:
    """As the reference reads hosts."""
    await crawler.discover(url)

    assert await crawler.stats(key) == (1, 1, 0, 0)
    assert (await crawler.status(url)).known.info.key == key
    deleted = await crawler.stub.DeleteQueue(wire.QueueWithinCrawlParams(key=key, crawlID=crawler.crawl))
    assert deleted.value == 1
    assert await crawler.stats(key) == (0, 0, 0, 0)


async def test_crawls_are_apart_and_the_blank_one_is_the_default(address: str, crawler: Crawler) -> None:
    """The same URL may be in each; one that was deleted may be put again."""
    url = f"http://{uuid.uuid4().hex}.net/"
    key = url[7:-1]
    async with crawling(address, "") as default, crawling(address, "DEFAULT") as explicit:
        await crawler.discover(url)
        await default.discover(url)
        assert await explicit.put(explicit.discovered(url)) == [(url, SKIPPED)]
        crawls = (await crawler.stub.ListCrawls(wire.Local())).values
        assert {crawler.crawl, "DEFAULT"} <= set(crawls)
        stats = await default.stub.GetStats(wire.QueueWithinCrawlParams(key=key))
        assert (stats.size, stats.crawlID) == (1, "DEFAULT")

        deleted = await crawler.stub.DeleteCrawl(wire.DeleteCrawlMessage(value=crawler.crawl))

        assert deleted.value == 1
        assert await crawler.stats() == (0, 0, 0, 0)
        assert crawler.crawl not in (await crawler.stub.ListCrawls(wire.Local())).values
        assert await default.stats(key) == (1, 1, 0, 0)
        await crawler.discover(url)
        assert await crawler.take_all(1) == [url]


async def test_a_dump_can_be_put_again_with_nothing_lost(crawler: Crawler) -> None:
    """Keys, metadata and dates, also of what is completed, through the JSON that gRPC's clients write."""
    date = now() + HOUR
    items = [
        crawler.discovered("http://example.com/discovered", "example.com", source=["seed", "sitemap"]),
        crawler.known("http://example.com/done", 0, "a key"),
        crawler.known("http://example.com/later", date, "example.com", ü=["ß"]),
    ]
    assert [status for _, status in await crawler.put(*items)] == [OK] * 3
    dump = [json_format.MessageToJson(item) for item in await crawler.list_urls(size=2**31 - 1)]
    assert len(dump) == 3

    await crawler.stub.DeleteCrawl(wire.DeleteCrawlMessage(value=crawler.crawl))
    again = [json_format.Parse(line, wire.URLItem()) for line in dump]
    assert [status for _, status in await crawler.put(*again)] == [OK] * 3

    found = {item.known.info.url: item for item in await crawler.list_urls()}
    later = found["http://example.com/later"]
    done = found["http://example.com/done"]
    assert later.known.refetchable_from_date == date
    assert later.known.info.metadata["ü"].values == ["ß"]
    assert (done.known.refetchable_from_date, done.known.info.key) == (0, "a key")
    assert found["http://example.com/discovered"].known.info.metadata["source"].values == ["seed", "sitemap"]
    assert abs(later.creation_date - now()) < HOUR
    count = await crawler.stub.CountURLs(wire.CountUrlParams(crawlID=crawler.crawl))
    assert count.value == 3


async def test_batches_of_discovered_urls_have_a_status_for_each(crawler: Crawler) -> None:
    """In their order, repeated and known ones skipped; an empty batch has none."""
    await crawler.discover("http://a.org/known")
    batches = [
        wire.DiscoveredBatch(ID="1", items=[crawler.info(f"http://a.org/{n}") for n in (*range(50), 0, "known")]),
        wire.DiscoveredBatch(ID="2"),
        wire.DiscoveredBatch(ID="3", items=[crawler.info(""), crawler.info("http://b.org/")]),
    ]

    async def send() -> AsyncIterator[wire.DiscoveredBatch]:
        for batch in batches:
            yield batch

    acks = {ack.ID: list(ack.statuses) async for ack in crawler.stub.PutDiscovered(send())}

    assert acks.keys() == {"1", "2", "3"}
    assert acks["1"][1:50] == [OK] * 49
    assert sorted((acks["1"][0], acks["1"][50])) == [OK, SKIPPED]
    assert acks["1"][51] == SKIPPED
    assert (acks["2"], acks["3"]) == ([], [SKIPPED, OK])
    assert await crawler.stats() == (2, 52, 0, 0)


async def test_a_queue_can_be_blocked_delayed_and_limited(crawler: Crawler) -> None:
    """Each holds its URLs back until it is taken away."""
    stub = crawler.stub
    crawl = crawler.crawl
    await crawler.discover("http://a.org/1", "http://a.org/2")
    await crawler.put(crawler.known("http://a.org/done", 0))

    await stub.BlockQueueUntil(wire.BlockQueueParams(key="a.org", crawlID=crawl, time=now() + HOUR))
    assert await crawler.take("a.org") == []
    assert await crawler.list_queues() == []
    assert await crawler.list_queues(include_inactive=True) == ["a.org"]
    await stub.BlockQueueUntil(wire.BlockQueueParams(key="a.org", crawlID=crawl))

    await stub.SetCrawlLimit(wire.CrawlLimitParams(key="a.org", crawlID=crawl, limit=1))
    assert await crawler.take("a.org") == []
    await stub.SetCrawlLimit(wire.CrawlLimitParams(key="a.org", crawlID=crawl))

    await stub.SetDelay(wire.QueueDelayParams(key="a.org", crawlID=crawl, delay_requestable=HOUR))
    assert await crawler.take("a.org", urls=1) == ["http://a.org/1"]
    assert await crawler.take("a.org", urls=2) == []
    await stub.SetDelay(wire.QueueDelayParams(key="a.org", crawlID=crawl))
    assert await crawler.take_all(1, "a.org") == ["http://a.org/2"]


async def test_queues_are_served_in_turns(crawler: Crawler) -> None:
    """At most so many at once, each with at most so many URLs; a key without a crawl names no queue."""
    await crawler.discover(*(f"http://{host}.org/{n}" for host in "abc" for n in range(3)))

    first = await crawler.take(queues=2, urls=1)
    second = await crawler.take(queues=2, urls=1)

    assert len(first) == 2
    assert len({url.split("/")[2] for url in first + second}) == len(first + second) == 3
    assert [info async for info in crawler.stub.GetURLs(wire.GetParams(key="a.org"))] == []


async def test_an_inactive_frontier_gives_nothing_and_takes_everything(crawler: Crawler) -> None:
    """For all crawls, until it is active again."""
    await crawler.stub.SetActive(wire.Active(state=False))
    try:
        assert not (await crawler.stub.GetActive(wire.Local())).state
        await crawler.discover("http://a.org/")
        assert await crawler.take() == []
        assert await crawler.take(is_any_crawl=True) == []
    finally:
        await crawler.stub.SetActive(wire.Active(state=True))

    assert await crawler.take() == ["http://a.org/"]


async def test_queues_and_urls_are_listed_by_pages(crawler: Crawler) -> None:
    """Each once; URLs also by a part of them, in upper or lower case."""
    urls = {f"http://{n}.org/Page{n}" for n in range(30)}
    await crawler.discover(*urls)

    queues = [queue for start in (0, 20) for queue in await crawler.list_queues(start=start, size=20)]
    listed = [item.known.info.url for start in (0, 20) for item in await crawler.list_urls(start=start, size=20)]

    assert sorted(queues) == sorted(f"{n}.org" for n in range(30))
    assert sorted(listed) == sorted(urls)
    assert len(await crawler.list_urls(filter="page7")) == 0
    assert [item.known.info.url for item in await crawler.list_urls(filter="page7", ignoreCase=True)] == [
        "http://7.org/Page7"
    ]
    assert len(await crawler.list_urls(key="3.org")) == 1
    count = await crawler.stub.CountURLs(wire.CountUrlParams(crawlID=crawler.crawl, filter="Page1"))
    assert count.value == 11


async def test_old_urls_are_purged(crawler: Crawler) -> None:
    """By the day on which they were put first."""
    await crawler.discover("http://a.org/", "http://b.org/")
    put_at = now()
    await wait_until(lambda: now() > put_at + 1, "the URLs are older than a second")

    kept = await crawler.stub.PurgeURLs(wire.PurgeUrlParams(crawlID=crawler.crawl, days=1))
    gone = await crawler.stub.PurgeURLs(wire.PurgeUrlParams(crawlID=crawler.crawl, key="a.org", days=0))

    assert (kept.value, gone.value) == (0, 1)
    assert await crawler.stats("a.org") == (1, 0, 0, 0)
    assert await crawler.stats("b.org") == (1, 1, 0, 0)


async def test_what_can_never_be_stored_is_skipped(crawler: Crawler) -> None:
    """An empty item, a URL without a host, a key or metadata too long; the identifier of the client comes back."""
    items = [
        wire.URLItem(ID="empty"),
        wire.URLItem(ID="no url", discovered=wire.DiscoveredURLItem(info=crawler.info("", "a.org"))),
        wire.URLItem(ID="no host", discovered=wire.DiscoveredURLItem(info=crawler.info("http:///a"))),
        wire.URLItem(ID="key", discovered=wire.DiscoveredURLItem(info=crawler.info("http://a.org/", "k" * 256))),
        wire.URLItem(ID="url", discovered=wire.DiscoveredURLItem(info=crawler.info("http://a.org/" + "a" * 100_000))),
        wire.URLItem(ID="metadata", known=crawler.known("http://a.org/", 1, a=["x" * 100_000]).known),
    ]

    assert await crawler.put(*items) == sorted((item.ID, SKIPPED) for item in items)

    fits = crawler.known("http://a.org/", 2**64 - 1, "k" * 255, a=[""])
    assert await crawler.put(fits) == [("http://a.org/", OK)]
    assert await crawler.stats() == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("method", "request_bytes", "code", "sentence"),
    [
        (
            "GetStats",
            wire.Empty().SerializeToString() + b"\x0a\x02\xff\xfe",
            "INVALID_ARGUMENT",
            "the request can't be",
        ),
        ("GetURLs", b"\xff\xff\xff", "INVALID_ARGUMENT", "the request can't be read ("),
        (
            "GetURLStatus",
            wire.URLStatusRequest(url="http:///").SerializeToString(),
            "INVALID_ARGUMENT",
            "url: names no",
        ),
        ("GetURLStatus", wire.URLStatusRequest(url="http://x.y/").SerializeToString(), "NOT_FOUND", "url: is unknown"),
        ("SetCrawlLimit", wire.CrawlLimitParams(key="n").SerializeToString(), "NOT_FOUND", "key: names no queue"),
        ("DeleteQueue", b"", "INVALID_ARGUMENT", "key: is missing; name the queue, or call DeleteCrawl"),
        ("SetLogLevel", wire.LogLevelParams(package="no.such").SerializeToString(), "NOT_FOUND", "package: names no"),
        pytest.param("GetStats", bytes(5 * 1024 * 1024), "RESOURCE_EXHAUSTED", "", id="too large"),
        ("Unheard", b"", "UNIMPLEMENTED", ""),
    ],
)
async def test_a_wrong_request_gets_one_sentence(
    crawler: Crawler, method: str, request_bytes: bytes, code: str, sentence: str
) -> None:
    """And the status that says what its sender can do; the next request is answered."""
    call: aio.UnaryStreamMultiCallable[bytes, bytes] = crawler.channel.unary_stream(f"{SERVICE}{method}")
    refused = call(request_bytes)

    assert await refused.code() is grpc.StatusCode[code]
    assert (await refused.details()).startswith(sentence)
    assert await crawler.stats() == (0, 0, 0, 0)


async def test_what_came_before_an_unreadable_put_is_acknowledged(crawler: Crawler) -> None:
    """Then the stream ends with the reason."""
    good = crawler.discovered("http://a.org/").SerializeToString()
    puts: aio.StreamStreamMultiCallable[bytes, wire.AckMessage] = crawler.channel.stream_stream(
        f"{SERVICE}PutURLs", response_deserializer=wire.AckMessage.FromString
    )

    async def send() -> AsyncIterator[bytes]:
        yield good
        yield good.replace(b"http", b"\xff\xfetp")
        await asyncio.Event().wait()  # the client would send more

    call = puts(send())
    ack: Any = await call.read()

    assert (ack.ID, ack.status) == ("http://a.org/", OK)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_reads_nothing_or_goes_away_holds_up_nobody(crawler: Crawler) -> None:
    """Not others, and not the puts of its own that were read before."""
    silent = crawler.stub.PutURLs()
    sending = asyncio.create_task(_send_for_ever(silent, crawler))
    getting = crawler.stub.GetURLs(wire.GetParams(crawlID=crawler.crawl))

    async def has_many() -> bool:
        return (await crawler.stats("silent.org"))[1] >= 500

    await wait_until(has_many, "puts of the silent client are stored")
    await crawler.discover("http://other.org/")
    sending.cancel()
    silent.cancel()
    getting.cancel()

    await crawler.discover("http://other.org/2")
    stored = (await crawler.stats("silent.org"))[1]
    count = wire.CountUrlParams(crawlID=crawler.crawl, key="silent.org")
    await wait_until(lambda: _is_counted(crawler, count, stored), "what is counted is what is stored")


async def _send_for_ever(call: aio.StreamStreamCall[wire.URLItem, wire.AckMessage], crawler: Crawler) -> None:
    number = 0
    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(crawler.discovered(f"http://silent.org/{number}"))
            number += 1


async def _is_counted(crawler: Crawler, params: wire.CountUrlParams, minimum: int) -> bool:
    return (await crawler.stub.CountURLs(params)).value >= minimum


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "7071"], "--listen: is '7071'; write HOST:PORT, for example 127.0.0.1:7071 or [::1]:7071"),
        (["--listen", "127.0.0.1:65536"], "--listen: is '127.0.0.1:65536'; write HOST:PORT"),
        (["--listen", "::1:7071"], "--listen: is '::1:7071'; write HOST:PORT"),
        (["--listen", "no.such.host.invalid:0"], "--listen: no.such.host.invalid:0 can't be opened ("),
        (["--listen", "192.0.2.1:7071"], "--listen: 192.0.2.1:7071 can't be opened (Cannot assign requested address)"),
        (["--kind", "No kind"], "--kind: is 'No kind'; give lower-case letters, digits"),
        (["--kind", "echo"], "--kind: echo has a handler, which would not get its messages; give another kind"),
        (["--packs", "0"], "Invalid value for '--packs': is '0'; give a whole number of at least 1"),
        (["--packs", "1000001"], "--packs: is 1000001; give a number from 1 to 1,000,000"),
        (["--drain-seconds", "0"], "--drain-seconds: is 0; give seconds above 0, at most 3600"),
    ],
)
async def test_a_wrong_option_gets_one_sentence(run: Run, arguments: list[str], sentence: str) -> None:
    """With exit code 2."""
    ran = await run("frontier", *arguments)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"dormice: {sentence}")
    assert ran.err.count("\n") == 1


async def test_an_address_in_use_is_refused(run: Run, address: str) -> None:
    """Two frontiers at one address would share the calls."""
    ran = await run("frontier", "--listen", address)

    flaw = f"{address} can't be opened (Address already in use)"
    assert ran.code == 2
    assert ran.err == f"dormice: --listen: {flaw}; give another HOST:PORT of this machine\n"


@pytest.mark.long
async def test_a_signal_to_end_acknowledges_what_is_under_way(server: EmbeddedServer) -> None:
    """With exit code 0. The next process has all that was acknowledged, counts it, and can delete it."""
    settings = make_settings()
    kind = unused_kind()
    port = find_free_port()
    options = ("--kind", kind, "--packs", "3", "--health-port", str(port))
    stored: set[str] = set()

    async with frontier_process(server, settings, *options) as (process, address):
        async with crawling(address) as crawler:
            await wait_until(lambda: asyncio.to_thread(_is_ready, port), "it is ready")
            call = crawler.stub.PutURLs()
            sending = asyncio.create_task(_send_for_ever(call, crawler))

            with contextlib.suppress(aio.AioRpcError):
                async for ack in call:
                    stored.add(ack.ID)
                    if len(stored) == 100:
                        process.send_signal(signal.SIGTERM)

            sending.cancel()
            # the latter where the connection closes while the client still writes
            assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)

        assert await process.wait() == 0

    assert len(stored) >= 100
    async with frontier_process(server, settings, *options) as (process, address), crawling(address) as crawler:
        items = await crawler.list_urls(size=2**31 - 1)
        assert stored <= {item.known.info.url for item in items}
        await wait_until(lambda: _is_counted_in_memory(crawler, len(items)), "all that is stored is counted")
        deleted = await crawler.stub.DeleteCrawl(wire.DeleteCrawlMessage(value=crawler.crawl))
        assert deleted.value == len(items)
        assert await crawler.stats() == (0, 0, 0, 0)


async def _is_counted_in_memory(crawler: Crawler, count: int) -> bool:
    return (await crawler.stats())[1] == count


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
        return json.load(answer)["ready"]
    return False


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_killed_process_loses_nothing_that_it_acknowledged(server: EmbeddedServer, client: Client) -> None:
    """Another one waits for its end, has it all, and gives again what had been given."""
    settings = make_settings()
    kind = unused_kind()
    options = ("--kind", kind, "--packs", "3")
    capacity = Capacity(client, task_queue(f"{settings.task_queue_prefix}-{kind}", "short"))
    urls = [f"http://a.org/{n}" for n in range(500)]
    async with frontier_process(server, settings, *options) as (first, address), crawling(address) as crawler:
        await crawler.discover(*urls)
        assert len(await crawler.take(urls=100, lease=HOUR)) == 100
        await wait_until(capacity.find_identities, "the server has heard of the worker")
        elsewhere = f"127.0.0.1:{find_free_port()}"
        async with frontier_process(server, settings, *options, "--listen", elsewhere) as (second, other):
            async with aio.insecure_channel(other) as channel:
                assert not await _is_answered(channel)
            stored = await _acknowledged_until(first, crawler)
            async with crawling(other) as next_crawler:
                given: set[str] = set()

                async def are_all_given() -> bool:
                    given.update(await next_crawler.take(lease=HOUR))
                    return given >= {*urls, *stored}

                await wait_until(are_all_given, "all that was acknowledged is given")
            assert second.returncode is None


async def _acknowledged_until(process: asyncio.subprocess.Process, crawler: Crawler) -> set[str]:
    """Put URLs, kill the process while some are under way, and give those that were acknowledged."""
    call = crawler.stub.PutURLs()
    sending = asyncio.create_task(_send_for_ever(call, crawler))
    stored: set[str] = set()
    with contextlib.suppress(aio.AioRpcError):
        async for ack in call:
            stored.add(ack.ID)
            if len(stored) == 100:
                process.kill()
    sending.cancel()
    return stored


async def _is_answered(channel: aio.Channel) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(channel.channel_ready(), 5)
        return True
    return False
