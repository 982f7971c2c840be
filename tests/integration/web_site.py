"""A real web site on loopback, whose pages a test fills and changes, and a visitor that runs the `http` handler."""

import hashlib
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import pytest

from activities.api.outcome import UNCHANGED, Again, Reject, to_outcome
from activities.handlers.http.handler import http
from activities.http.address_guard import AddressGuard
from activities.http.client import HttpClient
from activities.http.names import LookUp
from activities.testing import make_context, make_message
from shared.errors import RetryLater
from shared.settings import Settings

NOW = datetime(2026, 11, 20, 20, 0, 0, tzinfo=UTC)
DAY = 86400

S, M, H, D = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


@dataclass(frozen=True, slots=True)
class Visit:
    """One request as the site got it; header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the site. With `stalls_after` the body stops there until the site closes."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    stalls_after: int | None = None


Page = Reply | Callable[[Visit], Reply]


class WebSite:
    """Serves `pages` by path from 127.0.0.1 and a free port, 404 for every other path, and records its `visits`."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.visits: list[Visit] = []
        self.failures: list[Exception] = []
        self.closing = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def port(self) -> int:
        """The free port the system gave."""
        return self._server.server_port

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """Give the URL of a path, under any name that leads here."""
        return f"http://{host}:{self.port}{path}"

    def answer(self, visit: Visit) -> Reply:
        """Record a visit and look up what to say."""
        self.visits.append(visit)
        page = self.pages.get(visit.path.partition("?")[0], Reply(404, b"no such page"))
        return page if isinstance(page, Reply) else page(visit)

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let stalled bodies go, end every thread, and report what went wrong in the site itself."""
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self.failures:
            raise ExceptionGroup("the test's own site failed", self.failures)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for every request, so nothing outlives its test
    request_queue_size = 1024  # five by default: of a burst the kernel would drop most, for seconds each time

    def __init__(self, site: WebSite) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.site = site

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 — the shape of http.server
        """Overlook visitors that leave in the middle of an answer: that is what they are tested for."""
        failure = sys.exception()
        if isinstance(failure, Exception) and not isinstance(failure, ConnectionError):
            self.site.failures.append(failure)


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20  # seconds; a connection left open by a failing test ends by itself
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] — it is this one and no other

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.server.site.answer(Visit(self.path, headers, body))
        self.send_response_only(reply.status)

        for name, value in self._headers_of(reply):
            self.send_header(name, value)

        self.end_headers()
        self.wfile.write(reply.body[: reply.stalls_after])

        if reply.stalls_after is not None:
            self.server.site.closing.wait()
            self.close_connection = True

    def _headers_of(self, reply: Reply) -> Iterator[tuple[str, str]]:
        if reply.status != 304:
            yield "Content-Length", str(len(reply.body))
        yield from reply.headers.items()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 — the name http.server uses
        """Keep the test's output to itself."""


class Visitor:
    """Runs cycles of the handler as a worker would, with a clock that stands still."""

    def __init__(self, client: HttpClient, settings: Settings) -> None:
        self.client = client
        self.settings = settings

    async def visit(self, payload: Any, now: datetime = NOW) -> Again | Reject:
        """Run one cycle; whatever comes back is an outcome that a worker accepts."""
        message = make_message(http, payload, id="page")
        ctx = make_context(message, started_at=now, settings=self.settings, http=self.client.get_session())
        outcome = await http(message, ctx)
        to_outcome(outcome, self.settings.payload_max_bytes)
        assert isinstance(outcome, Again | Reject)
        return outcome

    async def come_back(self, payload: Any, now: datetime = NOW) -> Again:
        """Run one cycle that is to end in another one, and give it with the payload that this one will have."""
        outcome = await self.visit(payload, now)
        assert isinstance(outcome, Again), outcome
        return replace(outcome, payload=payload) if outcome.payload is UNCHANGED else outcome

    async def refuse(self, payload: Any) -> str:
        """Run one cycle that is to be rejected, and give the reason."""
        outcome = await self.visit(payload)
        assert isinstance(outcome, Reject), outcome
        return outcome.reason

    async def fail(self, payload: Any) -> str:
        """Run one cycle whose attempt is to fail, and give the reason."""
        with pytest.raises(RetryLater) as caught:
            await self.visit(payload)
        return str(caught.value)


@asynccontextmanager
async def open_visitor(
    guard: AddressGuard | None = None, look_up: LookUp | None = None, **changes: Any
) -> AsyncGenerator[Visitor]:
    """Open a client with settings of the test's own, and close it."""
    settings = replace(Settings(http_allow_private=True, http_timeout=20 * S), **changes)
    async with HttpClient(settings, guard, look_up) as client:
        yield Visitor(client, settings)


def digest(data: bytes) -> str:
    """Give what the handler keeps of a body or a URL."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def conditional(etag: str, body: bytes) -> Callable[[Visit], Reply]:
    """Make a page that honours If-None-Match."""

    def page(visit: Visit) -> Reply:
        if visit.headers.get("if-none-match") == etag:
            return Reply(304, headers={"ETag": etag})
        return Reply(200, body, {"ETag": etag})

    return page
