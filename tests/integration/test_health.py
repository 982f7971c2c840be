"""Health over HTTP: what probes get, whatever they send and whatever state the process and the server are in."""

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from temporalio.client import Client

from activities.handlers.echo import echo
from activities.registry import Registry
from shared.errors import InvalidSetting, ServerNotReady
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.telemetry.metrics import SERVER_CHECKS
from shared.telemetry.sdk import Telemetry
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from tests.conftest import wait_until
from worker.health import (
    CONNECTIONS_MAX,
    HEAD_MAX_BYTES,
    Readiness,
    Report,
    answer_request,
    open_endpoint,
    watch_server,
)
from worker.main import StopRequest, serve_lanes
from worker.run import WorkerPlan, run_workers

READY: Report = {"ready": True}
UNREADY: Report = {"ready": False, "reason": "draining"}

Address = tuple[str, int]


@contextlib.asynccontextmanager
async def endpoint(report: Callable[[], Report] = lambda: READY) -> AsyncGenerator[Address]:
    """Open an endpoint at a free loopback port."""
    async with open_endpoint(("127.0.0.1", 0), report) as address:
        assert address is not None
        yield address


async def send(address: Address, request: bytes) -> tuple[int, dict[str, str], Any]:
    """Send bytes on a connection of their own and give status, header fields and JSON body of the answer."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status_line, *lines = head.decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    assert int(fields["Content-Length"]) == len(body)
    return int(status_line.split(" ")[1]), fields, json.loads(body)


@pytest.mark.parametrize(
    ("request_line", "report", "status", "body"),
    [
        ("GET /healthz HTTP/1.1", UNREADY, 200, {"alive": True}),
        ("GET /readyz HTTP/1.1", READY, 200, READY),
        ("GET /readyz HTTP/1.1", UNREADY, 503, UNREADY),
        ("GET /readyz?verbose HTTP/1.1", READY, 200, READY),
        ("GET /readyz HTTP/1.0", READY, 200, READY),
        ("GET /readyz HTTP/2.0", READY, 505, {"error": "use HTTP/1.1"}),
        ("GET / HTTP/1.1", READY, 404, {"error": "there are /healthz and /readyz"}),
        ("POST /readyz HTTP/1.1", READY, 405, {"error": "use GET"}),
        ("get /readyz HTTP/1.1", READY, 405, {"error": "use GET"}),
        ("GET /readyz", READY, 400, {"error": "send GET /healthz or GET /readyz"}),
        ("\x16\x03\x01 a TLS hello", READY, 400, {"error": "send GET /healthz or GET /readyz"}),
    ],
)
async def test_every_request_gets_one_answer(request_line: str, report: Report, status: int, body: Report) -> None:
    """Only GET of the two paths is answered; every other request gets an error that says what to send."""
    async with endpoint(lambda: report) as address:
        found = await send(address, f"{request_line}\r\nHost: probe\r\n\r\n".encode())

    assert (status, body) == (found[0], found[2])
    assert found[1]["Content-Type"] == "application/json"
    assert found[1]["Connection"] == "close"
    assert found[1].get("Allow") == ("GET" if status == 405 else None)


@given(head=st.binary(max_size=200))
@example(head=b"GET /readyz HTTP/1.1\r\n\r\n")
@example(head=b"  ")
def test_no_request_breaks_the_endpoint(head: bytes) -> None:
    """Any bytes at all get a status and a body."""
    status, body = answer_request(head, lambda: UNREADY)

    assert status in (200, 400, 404, 405, 503, 505)
    assert set(body) <= {"alive", "ready", "reason", "error"}


@pytest.mark.parametrize(
    ("request_line", "page", "status", "body"),
    [
        ("GET /status HTTP/1.1", {"lag": 0}, 200, {"lag": 0}),
        ("GET /status HTTP/1.1", None, 503, {"error": "starting"}),
        ("PUT /status HTTP/1.1", {"lag": 0}, 405, {"error": "use GET"}),
        ("GET /else HTTP/1.1", {"lag": 0}, 404, {"error": "there are /healthz, /readyz and /status"}),
        ("GET /readyz HTTP/1.1", None, 200, READY),
    ],
)
def test_a_process_may_tell_more_than_probes_ask(
    request_line: str, page: Report | None, status: int, body: Report
) -> None:
    """A page of its own is answered beside them, and is 503 while there is nothing to show."""
    head = f"{request_line}\r\n\r\n".encode()

    assert answer_request(head, lambda: READY, {"/status": lambda: page}) == (status, body)


async def test_an_oversize_request_is_refused() -> None:
    """A head beyond the limit is not read to its end."""
    async with endpoint() as address:
        request = b"GET /readyz HTTP/1.1\r\nX-Padding: ".ljust(HEAD_MAX_BYTES + 4, b"x")
        status, _, body = await send(address, request)

    assert (431, {"error": f"send at most {HEAD_MAX_BYTES} bytes"}) == (status, body)


async def test_a_stalled_request_blocks_nobody_and_is_cut_off() -> None:
    """One connection that sends half a request leaves the others alone, and does not stay open for ever."""
    async with endpoint() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /readyz HTT")
        await writer.drain()

        assert (await send(address, b"GET /readyz HTTP/1.1\r\n\r\n"))[0] == 200

        assert await reader.read() == b""
        writer.close()


async def test_too_many_connections_at_once_are_turned_away() -> None:
    """Connections that hold the endpoint's places are bounded; the one too many is closed without an answer."""
    async with endpoint() as address, contextlib.AsyncExitStack() as stack:
        for _ in range(CONNECTIONS_MAX):
            stack.callback((await asyncio.open_connection(*address))[1].close)
        reader, writer = await asyncio.open_connection(*address)
        stack.callback(writer.close)

        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_a_port_that_is_taken_is_named() -> None:
    """The sentence says which port, and what to change."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port: int = other.getsockname()[1]

        with pytest.raises(InvalidSetting) as refusal:
            async with open_endpoint(("127.0.0.1", port), lambda: READY):
                pass

    assert str(refusal.value) == (
        f"health-port: 127.0.0.1:{port} is taken by another program; give another --health-port, or 0 for a free one"
    )


async def test_a_host_that_is_not_ours_is_named() -> None:
    """An address of some other machine can't be opened."""
    with pytest.raises(InvalidSetting, match=r"^health-host: 192\.0\.2\.1:0 can't be opened .* of this machine$"):
        async with open_endpoint(("192.0.2.1", 0), lambda: READY):
            pass


@contextlib.asynccontextmanager
async def run_short_lane(
    client: Client, settings: Settings, readiness: Readiness, stopping: asyncio.Event
) -> AsyncGenerator[Counter[str]]:
    """Run the short lane in this process, with the server watched at short intervals; gives the checks by outcome."""
    telemetry = Telemetry(is_on=False)
    checks = Counter[str]()
    telemetry.recorders[SERVER_CHECKS.name] = lambda value, labels: checks.update({labels["outcome"]: int(value)})
    plan = WorkerPlan(
        settings=settings,
        registry=Registry([("the test", echo)]),
        lanes=("short",),
        drain=timedelta(seconds=5),
    )
    running = asyncio.create_task(run_workers(client, plan, stopping, readiness.take_workers))
    watching = asyncio.create_task(watch_server(client, readiness, telemetry, every=timedelta(milliseconds=200)))

    try:
        yield checks
    finally:
        stopping.set()
        await running
        watching.cancel()


async def test_ready_means_polling_with_a_server_that_answers(tmp_path: Path, settings: Settings) -> None:
    """Not ready while starting; ready while serving; not while the server is gone, again when it is back; not while
    draining. Messages go on after the server came back. Its answers and silences are counted.
    """
    options = EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None, slim=False)
    stopping = asyncio.Event()

    readiness = Readiness(stopping.is_set, answer_max_age=timedelta(seconds=2))
    async with run_embedded(options) as server, endpoint(readiness.report) as address:
        assert await _ready(address) == (503, "starting")
        client = await server.connect()
        async with run_short_lane(client, settings, readiness, stopping) as checks:
            await wait_until(lambda: _is_ready(address, (200, "")), "ready while serving")
            assert checks["answered"]
            await _kill(server)
            await wait_until(lambda: _is_ready(address, (503, "the server does not answer")), "unready without server")
            assert checks["silent"]
            await server.start()
            await wait_until(lambda: _is_ready(address, (200, "")), "ready with the server back")
            await _finish_a_message(client, settings)

        assert await _ready(address) == (503, "draining")


async def test_a_lane_that_does_not_poll_yet_is_named(client: Client, settings: Settings) -> None:
    """Workers that exist but have not begun to poll make nobody ready."""
    readiness = Readiness(lambda: False)
    readiness.answered_at = time.monotonic()
    stopping = asyncio.Event()
    plan = WorkerPlan(settings=settings, registry=Registry([("the test", echo)]), lanes=("short", "medium"))
    reports: list[Report] = []

    def announce(workers: Any) -> None:
        readiness.take_workers(workers)
        reports.append(readiness.report())
        stopping.set()

    await run_workers(client, replace(plan, drain=timedelta(0)), stopping, announce)

    assert reports == [{"ready": False, "reason": f"task queue {settings.task_queue_prefix}-short is not polled"}]


async def test_lanes_that_the_server_ends_stop_their_process(client: Client, settings: Settings) -> None:
    """A worker that fails for good drains all lanes, and when the server is the cause, the error says what to do."""
    order = StopRequest(asyncio.get_running_loop(), timedelta(minutes=1), _fail_overrun)
    plan = WorkerPlan(settings=settings, registry=Registry([("the test", echo)]), lanes=("short", "medium"))
    lost = Client(client.service_client, namespace="nowhere")

    with contextlib.closing(order), pytest.raises(ServerNotReady, match="no namespace 'nowhere'"):
        await serve_lanes(lost, plan, order, Readiness(lambda: order.is_given))

    assert order.is_given


def _fail_overrun() -> None:
    pytest.fail("the order was not carried out in time")


async def _ready(address: Address) -> tuple[int, str]:
    status, _, body = await send(address, b"GET /readyz HTTP/1.1\r\n\r\n")
    return status, body.get("reason", "")


async def _is_ready(address: Address, expected: tuple[int, str]) -> bool:
    return await _ready(address) == expected


async def _kill(server: EmbeddedServer) -> None:
    """End the server process with SIGKILL, found by the port it listens on among our own children."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if server.options.port in {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}:
                process.kill()
    await server.stop()


async def _finish_a_message(client: Client, settings: Settings) -> None:
    envelope = Envelope(kind="echo", id="after", lane="short", payload={"cycles": 1})
    receipt = await BulkStarter(client, settings).start(envelope, None)

    assert (await client.get_workflow_handle(receipt.workflow_id).result())["state"] == "done"
