"""What the `http` handler makes of answers as sites really send them, byte for byte, from a raw socket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.web_site import Visitor, digest, open_visitor

HELLO = b"Content-Length: 5\r\n\r\nhello"
CHUNKS = b"\r\n5\r\nhello\r\n0\r\n\r\n"


@pytest.fixture
async def visitor() -> AsyncIterator[Visitor]:
    """A visitor who may go to loopback."""
    async with open_visitor() as visitor:
        yield visitor


@asynccontextmanager
async def answering(raw: bytes) -> AsyncGenerator[str]:
    """Answer each request with these bytes and hang up; gives the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" + CHUNKS,
            id="two equal Transfer-Encoding headers",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"Set-Cookie: c%d=%s\r\n" % (n, b"x" * 650) for n in range(100)) + HELLO,
            id="64 KB of cookies",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nSet-Cookie: c=" + b"x" * 65000 + b"\r\n" + HELLO, id="a cookie of 64 KB"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(200)) + HELLO, id="200 headers"
        ),
        pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello", id="line feeds alone"),
        pytest.param(b"HTTP/1.1 200\r\n" + HELLO, id="no reason phrase"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nhello", id="HTTP/1.0 without a length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello", id="a space before the colon"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Folded: a\r\n b\r\n" + HELLO, id="a folded header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Name: \xe4\xff\r\n" + HELLO, id="a header in Latin-1"),
        pytest.param(b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\n" + HELLO, id="early hints"),
    ],
)
async def test_answers_that_browsers_read_are_read(visitor: Visitor, raw: bytes) -> None:
    """They break a rule or go to an extreme, and mean one thing only."""
    async with answering(raw) as url:
        again = await visitor.come_back({"url": url})

    assert again.reason == "first, 200"
    assert again.payload["seen"]["digest"] == digest(b"hello")


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
        pytest.param(b"<html>hello</html>", id="a page without a status"),
        pytest.param(b"HTTP/1.1 2000 OK\r\n" + HELLO, id="a status of four digits"),
        pytest.param(b'HTTP/1.1 200 OK\r\n"X-Quoted: 1"\r\n' + HELLO, id="a quoted header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Zero: a\0b\r\n" + HELLO, id="a zero byte"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n" + HELLO, id="two lengths"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n" + CHUNKS,
            id="a length beside chunks",
        ),
    ],
)
async def test_what_can_not_be_read_fails_the_attempt_and_says_that_repeating_hardly_helps(
    visitor: Visitor, raw: bytes
) -> None:
    """It is parked after its attempts: the end of one answer may have come with the beginning of nonsense."""
    async with answering(raw) as url:
        reason = await visitor.fail({"url": url})

    assert reason.startswith(f"{url} answers what is no HTTP (")
    assert reason.endswith("); asking again hardly helps until the site is mended")
    assert reason.isprintable()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", id="a body that is too short"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", id="no last chunk"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-", id="half of the headers"),
    ],
)
async def test_an_answer_that_breaks_off_fails_the_attempt(visitor: Visitor, raw: bytes) -> None:
    """The next attempt may get all of it."""
    async with answering(raw) as url:
        reason = await visitor.fail({"url": url})

    assert reason.startswith("no whole answer (")
