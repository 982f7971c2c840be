"""The HTTP API of a `dormice serve` process against the bare client and the bulk starter, on the same server."""

import asyncio
import itertools
import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from statistics import median, quantiles
from typing import Any

import httpx
from temporalio.client import Client

from bench.bare_loop import start_bare
from bench.harness import BadArgument, alternate, fill, fresh_server, new_prefix, noting, report
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised

SINGLE = 600
BULK = 2000
GETS = 2000
PAIRS = 3
CALLERS = 16
BUSY = 100
"""Messages that come back every two seconds while messages are shown."""
SINGLE_BODY = b'{"payload":{"delay":3600},"scheduled_at":"2036-01-01T00:00:00Z"}'
LENGTH = re.compile(rb"(?i)content-length: *([0-9]+)")
_numbers = itertools.count()


async def main(arguments: list[str]) -> None:
    """Compare starts, pair by pair; and time `GET` beside a busy worker. The argument is a factor of the sizes."""
    try:
        factor = float(arguments[0]) if arguments else 1.0
    except ValueError as exc:
        raise BadArgument(f"'{arguments[0]}' is no number; give a factor, such as 0.5") from exc

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(fresh_server())
        prefix = new_prefix()
        api = await stack.enter_async_context(_serving(server, prefix))
        client = await server.connect()
        async with noting(server, prefix):  # first, while there is nothing else for the worker to do
            shown = await _show(api, int(GETS * factor))
        rows = [*await _compare(client, api, prefix, factor), shown]

    note = f"single starts by {CALLERS} callers at once; GET one after the other, beside {BUSY // 2} cycles a second"
    report("serve", rows, note)


@asynccontextmanager
async def _serving(server: EmbeddedServer, prefix: str) -> AsyncGenerator[httpx.AsyncClient]:
    port = find_free_port()
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, "DORMICE_TASK_QUEUE_PREFIX": prefix}
    command = [sys.executable, "-m", "starter", "serve", "--port", str(port)]
    process = await start_supervised(command, asyncio.subprocess.DEVNULL, environment)

    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as api:
            await _wait_for(api)
            yield api
    finally:
        await kill_supervised(process)


async def _wait_for(api: httpx.AsyncClient) -> None:
    while True:
        try:
            (await api.get("/readyz")).raise_for_status()
        except httpx.HTTPError:
            await asyncio.sleep(0.1)
        else:
            return


async def _compare(client: Client, api: httpx.AsyncClient, prefix: str, factor: float) -> list[dict[str, Any]]:
    singles = int(SINGLE * factor)
    bulks = int(BULK * factor)
    pairs: list[tuple[str, int, dict[str, Callable[[int], Awaitable[object]]]]] = [
        (
            "single starts",
            singles,
            {"bare client": lambda n: _start_bare(client, prefix, n), "HTTP": lambda n: _start_single(api, n)},
        ),
        (
            "bulk",
            bulks,
            {
                "bulk starter": lambda n: fill(client, "asleep", f"{prefix}-{next(_numbers)}", n, 3600),
                "HTTP": lambda n: _start_bulk(api, n),
            },
        ),
    ]
    rows: list[dict[str, Any]] = []

    for what, count, contestants in pairs:
        rates: dict[str, list[float]] = {name: [] for name in contestants}
        for start in contestants.values():
            await start(count // 10)  # the first calls are slower

        for number in range(PAIRS):
            for name, start in alternate(contestants, number).items():
                began = time.monotonic()
                await start(count)
                rates[name].append(count / (time.monotonic() - began))

        (_, yardstick), (_, seen) = rates.items()
        rows += [
            {"what": f"{what}, {name}", "a second": median(found), "ratio": 1.0 if found is yardstick else None}
            for name, found in rates.items()
        ]
        rows[-1]["ratio"] = median(mine / theirs for mine, theirs in zip(seen, yardstick, strict=True))

    return [{**row, "p50 ms": None, "p99 ms": None} for row in rows]


async def _start_bare(client: Client, prefix: str, count: int) -> None:
    ids = [f"{prefix}-{next(_numbers)}" for _ in range(count)]
    await start_bare(client, f"{prefix}-bare", ids, delay=3600, cycles=5, in_flight=CALLERS)


class _Connection:
    """A connection that costs its caller little, because callers share the machine with what they measure."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, api: httpx.AsyncClient) -> "_Connection":
        return cls(api.base_url.netloc.decode(), *await asyncio.open_connection(api.base_url.host, api.base_url.port))

    async def ask(self, method: str, path: str, status: int, body: bytes = b"") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        await self._reader.readexactly(int(LENGTH.findall(answer)[0]))

    def close(self) -> None:
        self._writer.close()


async def _start_single(api: httpx.AsyncClient, count: int) -> None:
    ids = iter([next(_numbers) for _ in range(count)])

    async def call() -> None:
        connection = await _Connection.open(api)
        for number in ids:
            await connection.ask("POST", f"/v1/messages/echo/{number}", 201, SINGLE_BODY)
        connection.close()

    await asyncio.gather(*(call() for _ in range(CALLERS)))


async def _start_bulk(api: httpx.AsyncClient, count: int) -> None:
    line = '{"kind":"echo","id":"%d","payload":{"delay":3600},"scheduled_at":"2036-01-01T00:00:00Z"}\n'
    body = "".join(line % next(_numbers) for _ in range(count))
    response = await api.post("/v1/messages:bulk", content=body, headers={"Content-Type": "application/x-ndjson"})
    assert response.text.count('"outcome":"started"') == count, response.text[:500]


async def _show(api: httpx.AsyncClient, count: int) -> dict[str, Any]:
    for number in range(BUSY):
        (await api.post(f"/v1/messages/echo/busy-{number}", json={"payload": {"delay": 2}})).raise_for_status()

    await asyncio.sleep(5)  # until all of them come and go
    seconds: list[float] = []
    connection = await _Connection.open(api)

    for number in range(count):
        began = time.monotonic()
        await connection.ask("GET", f"/v1/messages/echo/busy-{number % BUSY}", 200)
        seconds.append(time.monotonic() - began)

    connection.close()
    parts = quantiles(seconds, n=100)
    rate = count / sum(seconds)
    return {"what": "GET", "a second": rate, "ratio": None, "p50 ms": parts[49] * 1000, "p99 ms": parts[98] * 1000}
