"""Health over HTTP: answers a supervisor whether a process is alive and whether it is ready."""

import asyncio
import contextlib
import errno
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from shared.errors import InvalidSetting
from shared.telemetry.metrics import SERVER_CHECKS
from shared.telemetry.sdk import Telemetry

logger = logging.getLogger(__name__)

Report = dict[str, Any]  # what /readyz answers: `ready`, and while that is false the `reason`

Pages = Mapping[str, Callable[[], Report | None]]  # what an endpoint answers beside its probes, by path; None: not yet

PROBES = ("/healthz", "/readyz")

NO_PAGES: Pages = MappingProxyType({})
HEAD_MAX_BYTES = 8192
REQUEST_TIMEOUT = timedelta(seconds=5)
CONNECTIONS_MAX = 64
CHECK_EVERY = timedelta(seconds=10)
ANSWER_MAX_AGE = timedelta(seconds=30)


@dataclass(slots=True)
class Readiness:
    """Whether one process can take messages right now; may be read from any thread."""

    is_stopping: Callable[[], bool]
    answer_max_age: timedelta = ANSWER_MAX_AGE
    workers: Sequence[Worker] = ()
    obstacle: str = ""  # why it has not begun yet, as long as it tries again
    answered_at: float = field(default=float("-inf"), init=False)  # monotonic seconds of the server's last answer

    def take_workers(self, workers: Sequence[Worker]) -> None:
        """Watch these workers from now on."""
        self.workers = workers

    def report(self) -> Report:
        """Return that the process is ready, or the first reason why it is not."""
        if self.is_stopping():
            return {"ready": False, "reason": "draining"}
        if gap := self.find_gap():
            return {"ready": False, "reason": gap}
        if time.monotonic() - self.answered_at > self.answer_max_age.total_seconds():
            return {"ready": False, "reason": "the server does not answer"}
        return {"ready": True}

    def find_gap(self) -> str:
        """Return what does not work yet in this process; empty when everything does."""
        if not self.workers:
            return self.obstacle or "starting"
        idle = [worker.task_queue for worker in self.workers if not worker.is_running]
        return f"task queue {idle[0]} is not polled" if idle else ""


async def watch_server(
    client: Client, readiness: Readiness, telemetry: Telemetry, every: timedelta = CHECK_EVERY
) -> None:
    """Check the server's health until cancelled; the SDK's core counts no call that reaches no server as failed."""
    while True:
        outcome = "silent"
        try:
            if await client.service_client.check_health(timeout=every):
                readiness.answered_at = time.monotonic()
                outcome = "answered"
        except RPCError as exc:
            fields = {"action": "server_check_failed", "reason": exc.message[:200]}
            logger.warning("server does not answer", extra=fields)
        telemetry.record(SERVER_CHECKS, 1, {"outcome": outcome})
        await asyncio.sleep(every.total_seconds())


@contextlib.asynccontextmanager
async def open_endpoint(
    address: tuple[str, int] | None, report: Callable[[], Report], pages: Pages = NO_PAGES
) -> AsyncGenerator[tuple[str, int] | None]:
    """Answer GET /healthz and /readyz at (host, port) during a `with` block; yield the address, with the real port.

    /healthz answers 200 while the event loop runs, /readyz 200 or 503 with `report` as JSON, each of `pages` what it
    returns. An address of None opens nothing. Raises InvalidSetting when the address can't be opened.
    """
    if address is None:
        yield None
        return

    host, port = address
    try:
        server = await asyncio.start_server(_Endpoint(report, pages).answer, host, port, limit=HEAD_MAX_BYTES)
    except OSError as exc:
        raise InvalidSetting(_explain(host, port, exc)) from exc

    bound: tuple[str, int] = server.sockets[0].getsockname()[:2]
    logger.info("health endpoint open", extra={"action": "health_open", "host": bound[0], "port": bound[1]})

    try:
        yield bound
    finally:
        server.close()  # open connections end with the loop: a probe that hangs must not delay the exit


def answer_request(head: bytes, report: Callable[[], Report], pages: Pages = NO_PAGES) -> tuple[HTTPStatus, Report]:
    """Give the status and JSON body for one request's head, whatever its bytes are."""
    words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/"):
        return HTTPStatus.BAD_REQUEST, {"error": "send GET /healthz or GET /readyz"}

    method, target, version = words
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        return HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, {"error": "use HTTP/1.1"}

    path = target.partition("?")[0]
    if path not in PROBES and path not in pages:
        *names, last = *PROBES, *pages
        return HTTPStatus.NOT_FOUND, {"error": f"there are {', '.join(names)} and {last}"}

    if method != "GET":
        return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET"}
    if path == "/healthz":
        return HTTPStatus.OK, {"alive": True}

    if path in pages:
        page = pages[path]()
        return (HTTPStatus.SERVICE_UNAVAILABLE, {"error": "starting"}) if page is None else (HTTPStatus.OK, page)

    body = report()
    return (HTTPStatus.OK if body["ready"] else HTTPStatus.SERVICE_UNAVAILABLE), body


def encode_report(report: Report) -> bytes:
    """Write a report as one line of JSON."""
    return json.dumps(report).encode() + b"\n"


class _Endpoint:
    """Answers each connection once, in a task of its own, and closes it."""

    def __init__(self, report: Callable[[], Report], pages: Pages) -> None:
        self._report = report
        self._pages = pages
        self._open = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return

        self._open += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT.total_seconds()):
                await self._exchange(reader, writer)
        except (TimeoutError, ConnectionError):
            writer.transport.abort()  # a client that stalls or hangs up has no use for an answer
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            body = {"error": f"send at most {HEAD_MAX_BYTES} bytes"}
        else:
            status, body = answer_request(head, self._report, self._pages)

        writer.write(_render(status, body))
        await writer.drain()


def _render(status: HTTPStatus, body: Report) -> bytes:
    content = encode_report(body)
    fields = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        fields.append("Allow: GET")

    return "\r\n".join([*fields, "", ""]).encode() + content


def _explain(host: str, port: int, exc: OSError) -> str:
    at = f"{host}:{port}"
    if exc.errno == errno.EADDRINUSE:
        return f"health-port: {at} is taken by another program; give another --health-port, or 0 for a free one"
    if exc.errno == errno.EACCES:
        return f"health-port: {at} needs more rights than this process has; give a --health-port above 1023"
    return f"health-host: {at} can't be opened ({exc.strerror}); give --health-host an address of this machine"
