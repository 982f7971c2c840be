"""What telemetry costs: cold cycles a second with metrics and traces, against the same worker without, on one server.

A client that fetches the page more often than Prometheus usually does stands in for it; a receiver that accepts all it
gets stands in for an OTLP collector. Messages are sampled as by default.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from statistics import median

import httpx

from bench.cycles import CACHE, COLD_DELAY, PAIRS, SECONDS, SLEEPERS
from bench.harness import alternate, fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Measured, Order
from starter.local.supervised_process import find_free_port

FETCH_EVERY_SECONDS = 5.0
OFF = "off"
ON = "on"


async def main(_: list[str]) -> None:
    """Run pairs of off and on, one after the other."""
    seen: dict[str, list[Measured]] = {OFF: [], ON: []}
    pages: list[int] = []

    posts: list[int] = []
    async with fresh_server() as server, _receiver(posts) as receiver:
        prefix = new_prefix()
        await fill(await server.connect(), "dormice", prefix, SLEEPERS, COLD_DELAY)
        for number in range(PAIRS):
            for what in alternate(seen, number):
                address = f"127.0.0.1:{find_free_port()}" if what == ON else ""
                order = Order(what="dormice", prefix=prefix, seconds=SECONDS, cache=CACHE, slots=30, telemetry=address)
                used = receiver if what == ON else ""
                order = replace(order, receiver=used)
                fetching = asyncio.create_task(_fetch_on(address, pages))
                seen[what].append(await run_worker(server, order))
                fetching.cancel()

    rows = [
        {
            "telemetry": what,
            "cycles/s": median(m.rate for m in runs),
            "cpu ms/cycle": median(m.cpu_ms for m in runs),
            "ratio": median(m.rate / off.rate for m, off in zip(runs, seen[OFF], strict=True)),
            "cpu ratio": median(m.cpu_ms / off.cpu_ms for m, off in zip(runs, seen[OFF], strict=True)),
        }
        for what, runs in seen.items()
    ]
    fetched = f"{len(pages)} pages of up to {max(pages):,} bytes"
    received = f"{len(posts)} posts of {sum(posts):,} bytes"
    report("telemetry", rows, note=f"{PAIRS} pairs of {SECONDS:.0f} s; {fetched}; {received} in all")


@contextlib.asynccontextmanager
async def _receiver(posts: list[int]) -> AsyncGenerator[str]:
    """Take what is posted, and note its sizes."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])
                posts.append(len(await reader.readexactly(size)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _fetch_on(address: str, pages: list[int]) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        while address:
            await asyncio.sleep(FETCH_EVERY_SECONDS)
            with contextlib.suppress(httpx.TransportError):
                pages.append(len((await http.get(f"http://{address}/metrics")).content))
