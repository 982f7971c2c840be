"""What the `http` handler bears: sizes, broken and slow bodies, odd validators, on a real site on loopback."""

import asyncio
import gzip
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from shared.messages.json_value import encode_json
from tests.integration.web_site import Reply, Visit, Visitor, WebSite, digest, open_visitor


@pytest.fixture
def site() -> Iterator[WebSite]:
    """A site of the test's own."""
    with WebSite() as site:
        yield site


@pytest.fixture
async def visitor(site: WebSite) -> AsyncIterator[Visitor]:
    """A visitor who may go to loopback, and leaves before the site closes."""
    async with open_visitor() as visitor:
        yield visitor


async def test_a_body_above_the_limit_is_refused(site: WebSite) -> None:
    """A body of exactly the limit is read, one byte more is rejected with the limit and the setting."""
    site.pages["/a"] = Reply(200, b"x" * 1000)
    site.pages["/b"] = Reply(200, b"x" * 1001)

    async with open_visitor(http_max_bytes=1000) as visitor:
        again = await visitor.come_back({"url": site.url("/a")})
        reason = await visitor.refuse({"url": site.url("/b")})

    expected = (
        f"payload.url: {site.url('/b')}: the body is longer than 1000 bytes; raise DORMICE_HTTP_MAX_BYTES to read it"
    )
    assert again.reason == "first, 200"
    assert expected == reason


async def test_a_body_above_the_limit_is_not_read_to_its_end(site: WebSite) -> None:
    """The handler leaves as soon as the limit is passed, even when the rest never comes."""
    site.pages["/a"] = Reply(200, b"x" * 5_000_000, stalls_after=100_000)

    async with open_visitor(http_max_bytes=50_000) as visitor:
        reason = await visitor.refuse({"url": site.url("/a")})

    assert "longer than 50000 bytes" in reason


async def test_gzip_is_asked_for_and_decoded(site: WebSite, visitor: Visitor) -> None:
    """The digest is of the decoded body, so the same words packed differently are unchanged."""
    words = b"words " * 50_000
    packed = {"Content-Encoding": "gzip"}
    site.pages["/a"] = Reply(200, gzip.compress(words, 9), packed)
    first = await visitor.come_back({"url": site.url("/a")})
    half = len(words) // 2
    site.pages["/a"] = Reply(
        200,
        gzip.compress(words[:half], 1) + gzip.compress(words[half:], 1) + bytes(512),
        {"Content-Encoding": "x-GZIP"},
    )
    second = await visitor.come_back(first.payload)
    site.pages["/a"] = Reply(200, words)
    third = await visitor.come_back(second.payload)

    assert first.payload["seen"]["digest"] == digest(words)
    assert [second.reason, third.reason] == ["unchanged, 200"] * 2
    assert {"gzip"} == {visit.headers["accept-encoding"] for visit in site.visits}


async def test_the_decoded_size_counts(site: WebSite) -> None:
    """A small body that unpacks to a huge one is rejected at the limit, and never gets into memory."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    zeros = bytes(1 << 20)
    bomb = b"".join(packer.compress(zeros) for _ in range(60)) + packer.flush()
    site.pages["/a"] = Reply(200, bomb, {"Content-Encoding": "gzip"})

    async with open_visitor(http_max_bytes=1 << 20) as visitor:
        await visitor.come_back({"url": site.url("/small")})
        tracemalloc.start()
        try:
            reason = await visitor.refuse({"url": site.url("/a")})
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert "longer than 1048576 bytes" in reason
    assert len(bomb) < 1 << 16
    assert peak_bytes < 8 << 20


@pytest.mark.parametrize(
    "body",
    [b"plain words", gzip.compress(b"words" * 100, mtime=0)[:-9], gzip.compress(b"words", mtime=0)[:5]],
    ids=["no gzip", "without its end", "hardly begun"],
)
async def test_broken_gzip_fails_the_attempt(site: WebSite, visitor: Visitor, body: bytes) -> None:
    """A body that is no gzip though it says so, or breaks off, is no answer to draw conclusions from."""
    site.pages["/a"] = Reply(200, body, {"Content-Encoding": "gzip"})

    assert "it will be asked for again" in await visitor.fail({"url": site.url("/a")})


async def test_an_empty_gzip_body_is_a_body(site: WebSite, visitor: Visitor) -> None:
    """Nothing at all under the label gzip, as some sites send it, is an empty body."""
    site.pages["/a"] = Reply(200, b"", {"Content-Encoding": "gzip"})

    again = await visitor.come_back({"url": site.url("/a")})

    assert again.payload["seen"]["digest"] == digest(b"")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [(b"", "text/plain"), (bytes(range(256)) * 40, "image/png"), (b"\xff\xfe\x00bad utf-8 \xc3\x28", "text/html")],
)
async def test_a_body_need_not_be_text(site: WebSite, visitor: Visitor, body: bytes, content_type: str) -> None:
    """Bodies are bytes: empty, binary and wrongly labelled ones get a digest like any other."""
    site.pages["/a"] = Reply(200, body, {"Content-Type": content_type + "; charset=utf-8"})

    again = await visitor.come_back({"url": site.url("/a")})

    assert again.payload["seen"]["digest"] == digest(body)


@pytest.mark.parametrize("stalls_after", [0, 3])
async def test_a_body_that_does_not_come_fails_the_attempt(site: WebSite, stalls_after: int) -> None:
    """A visit ends at the total time of the setting, however little is missing."""
    site.pages["/a"] = Reply(200, b"words", stalls_after=stalls_after)

    async with open_visitor(http_timeout=timedelta(milliseconds=300)) as visitor:
        reason = await visitor.fail({"url": site.url("/a")})

    assert reason == "the visit took longer than 0.3 s; raise DORMICE_HTTP_TIMEOUT if that is usual"


async def test_no_answer_fails_the_attempt() -> None:
    """A port where nobody listens is retried."""
    with WebSite() as site:
        url = site.url("/a")

    async with open_visitor() as visitor:
        assert (await visitor.fail({"url": url})).startswith("no whole answer (ClientConnectorError")


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({"ETag": '"' + "e" * 254 + '"'}, {"etag", "page"}),
        ({"ETag": '"' + "e" * 255 + '"'}, set[str]()),
        ({"ETag": '"' + "e" * 255 + '"', "Last-Modified": "Fri, 20 Nov 2026 18:00:00 GMT"}, {"modified", "page"}),
        ({"ETag": '"\u00e9"'}, set[str]()),
        ({"ETag": ""}, set[str]()),
    ],
)
async def test_validators_that_can_not_be_kept_are_dropped(
    site: WebSite, visitor: Visitor, headers: dict[str, str], kept: set[str]
) -> None:
    """A validator over 256 bytes, or one that can't be sent back as it came, is forgotten; the digest remains."""
    site.pages["/a"] = Reply(200, b"words", headers)

    first = await visitor.come_back({"url": site.url("/a")})
    second = await visitor.come_back(first.payload)

    assert {"digest", "interval", "changed", *kept} == set(first.payload["seen"])
    assert second.reason == "unchanged, 200"
    assert len(encode_json(second.payload)) < 1024


@pytest.mark.parametrize(
    ("spare_bytes", "kept"),
    [
        (700, {"etag", "modified", "page", "digest", "interval", "changed"}),
        (200, {"digest", "interval", "changed"}),
        (20, None),
    ],
)
async def test_the_payload_never_outgrows_its_limit(site: WebSite, spare_bytes: int, kept: set[str] | None) -> None:
    """What does not fit beside the sender's own payload is forgotten, validators first, and the message lives on."""
    site.pages["/a"] = Reply(200, b"words", {"ETag": '"' + "e" * 200 + '"', "Last-Modified": "x" * 200})
    payload: Any = {"url": site.url("/a"), "note": "n" * 1000}

    async with open_visitor(payload_max_bytes=len(encode_json(payload)) + spare_bytes) as visitor:
        again = await visitor.come_back(payload)

    seen = again.payload.get("seen")
    assert kept == (None if seen is None else set(seen))
    assert payload.items() <= again.payload.items()


async def test_validators_that_were_tampered_with_are_not_sent(site: WebSite, visitor: Visitor) -> None:
    """A line break in the state can't add a header to the request."""
    site.pages["/a"] = Reply(200, b"words", {"ETag": '"one"'})
    first = await visitor.come_back({"url": site.url("/a")})
    first.payload["seen"] |= {"etag": '"one"\r\nX-Evil: 1', "modified": 5}

    second = await visitor.come_back(first.payload)

    assert second.reason == "unchanged, 200"
    assert not {"x-evil", "if-none-match", "if-modified-since"} & set(site.visits[1].headers)


async def test_a_burst_of_handlers_has_a_connection_each(site: WebSite, visitor: Visitor) -> None:
    """None waits for another's, at the cost of its own timeout: here all must be there before one is answered."""
    burst = threading.Barrier(300)

    def answer(_: Visit) -> Reply:
        burst.wait(timeout=40)
        return Reply(200, b"all are here")

    site.pages["/a"] = answer
    session = visitor.client.get_session()
    patience = aiohttp.ClientTimeout(total=40)
    answers = await asyncio.gather(*(session.get(site.url("/a"), timeout=patience) for _ in range(burst.parties)))

    assert {answer.status for answer in answers} == {200}
