"""Packs at a rhythm, for the scenario `packs`: what their size does at several rates, and N messages by the minute."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.harness import fresh_server, new_prefix, processor_seconds, report, run_worker, working
from bench.pack_filling import HOUR, Filling, settled_bytes, start_packs, start_sorted, to_order, wait_until_asleep
from bench.worker_process import Measured, versions_file
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from worker.lanes.profiles import PROFILES

SHORT = PROFILES["short"]
SIZES = (50, 200, 500, 1000)
RATES = (1000, 3000, 6000)
SIZE_COUNT = 100_000
SIZE_SECONDS = 25.0
FILLED_PER_SECOND = 25_000
"""Messages that are surely sent and taken in: those due before all others are would hold the worker up."""

WINDOWS_MAX = 10_000
"""More minutes than any run takes: the workers are stopped when it ends."""


async def measure_sizes() -> None:
    """What a pack's size does at several rates: cycles, processor time, lateness, disk."""
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        for due in RATES:
            delay = SIZE_COUNT / due
            filling = Filling(
                prefix=new_prefix(),
                count=SIZE_COUNT,
                size=size,
                delay=delay,
                due_in=SIZE_COUNT / 20_000,
                due_spread=delay,
                coalesce=delay / 12,
            )
            rows.append({"size": size, "due/s": due} | await _run_at_rhythm(filling))
            print(rows[-1], flush=True)

    note = f"{SIZE_COUNT:,} messages, coalescing a twelfth of the mean delay; lateness is counted from the due time"
    report("packs", rows, note=note, case="size")


async def _run_at_rhythm(filling: Filling) -> dict[str, Any]:
    async with fresh_server() as server:
        client = await server.connect()
        before = await settled_bytes(server)
        async with working(server, to_order(filling)):
            await start_packs(client, filling, filling.envelopes())
        measured = await run_worker(server, to_order(filling, seconds=SIZE_SECONDS, warmup=15.0))
        size_on_disk = await settled_bytes(server) - before
    return _describe(measured) | {"bytes/message": size_on_disk / filling.count}


class Rhythm(NamedTuple):
    """What `packs fill` takes after the count, in this order; `cycles_per_run` is each message's share of a run.

    Times are in seconds; without a tolerance it is a twelfth of the mean delay. Packs coalesce for as long. A number of
    `cached` workflows is all that bounds a worker's cache; without one its bytes do too.
    """

    seconds: float = 300.0
    delay: float = HOUR
    workers: float = 1
    cached: float = SHORT.cached_workflows
    cycles_per_run: float = 0.25
    tolerance: float = 0.0
    size: float = 1000


async def measure_fill(count: int, *numbers: float) -> None:
    """Fill packs, then run at the rhythm; a row each minute."""
    rhythm = Rhythm(*numbers)
    seconds = rhythm.seconds
    delay = rhythm.delay
    filling = Filling(
        prefix=new_prefix(),
        count=count,
        size=int(rhythm.size),
        delay=delay,
        due_in=60.0 + count / FILLED_PER_SECOND,
        due_spread=delay,
        coalesce=rhythm.tolerance or delay / 12,
    )
    rows: list[dict[str, Any]] = []
    window = min(60.0, seconds)
    cached_bytes = Settings().cached_bytes if rhythm.cached == SHORT.cached_workflows else 0

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(fresh_server())
        order = to_order(
            filling,
            cache=int(rhythm.cached),
            cached_bytes=cached_bytes,
            pack_cycles_per_run=rhythm.cycles_per_run,
            seconds=window,
            windows=WINDOWS_MAX,
            versions=stack.enter_context(versions_file(count)),
        )
        running = [await stack.enter_async_context(working(server, order)) for _ in range(int(rhythm.workers))]
        filled = await _fill(server, filling)
        await follow(server, running, max(1, round(seconds / window)), rows.append)

    report("packs", rows, note=f"{filled}; {_describe_rhythm(rhythm, filling)}", case=_name_case(rhythm, count))


def _describe_rhythm(rhythm: Rhythm, filling: Filling) -> str:
    times = f"mean delay {rhythm.delay / HOUR:.2g} h, tolerance {filling.coalesce:.0f} s"
    workers = "a worker that caches" if rhythm.workers == 1 else f"{rhythm.workers:g} workers that cache"
    return f"packs of {rhythm.size:,g}, {times}; {workers} {rhythm.cached:g}"


def _name_case(rhythm: Rhythm, count: int) -> str:
    default = Rhythm()
    parts = [f"fill {count}"]

    if rhythm.workers > 1:
        parts.append(f"{rhythm.workers:g} workers")
    if rhythm.cached != default.cached:
        parts.append(f"{rhythm.cached:g} cached")
    if rhythm.cycles_per_run != default.cycles_per_run:
        parts.append(f"{rhythm.cycles_per_run:g} cycles a run")
    if rhythm.tolerance:
        parts.append(f"tolerance {rhythm.tolerance:g}")
    if rhythm.size != default.size:
        parts.append(f"size {rhythm.size:g}")

    return " ".join(parts)


async def _fill(server: EmbeddedServer, filling: Filling) -> str:
    """Fill beside the workers until all is asleep; say how long it took and what it cost."""
    client = await server.connect()
    count = filling.count
    server_cpu = processor_seconds(server)
    sent = await start_sorted(client, filling)
    server_cpu = processor_seconds(server) - server_cpu
    ended = time.monotonic()
    await wait_until_asleep(client, filling)
    said = f"{sent.describe(count, server_cpu)}; all asleep after {sent.seconds + time.monotonic() - ended:.0f} s"
    print(f"{count:,}: {said}, disk {await settled_bytes(server) / 1e6:,.0f} MB", flush=True)

    return said


async def follow(
    server: EmbeddedServer, workers: list[list[Measured]], minutes: int, note: Callable[[dict[str, Any]], object]
) -> None:
    """Note a row for each minute of the workers, from the next one that begins; they print a window each minute."""
    first = max(map(len, workers)) + 1
    for minute in range(1, minutes + 1):
        async with asyncio.timeout(180):
            while min(map(len, workers)) < first + minute:  # noqa: ASYNC110 — others print them
                await asyncio.sleep(0.5)
        row = {"minute": minute} | _describe(_add([windows[first + minute - 1] for windows in workers]))
        row |= {"disk MB": await settled_bytes(server) / 1e6, "server CPU s": processor_seconds(server)}
        print(row, flush=True)
        note(row)


def _add(parts: list[Measured]) -> Measured:
    """Add what several processes saw in one window; lateness is that of the latest of them."""
    seconds = sum(part.seconds for part in parts) / len(parts)
    return Measured(
        cycles=sum(part.cycles for part in parts),
        seconds=seconds,
        cpu_seconds=sum(part.cpu_seconds for part in parts),
        rss_bytes=sum(part.rss_bytes for part in parts),
        repeated=sum(part.repeated for part in parts),
        left_out=sum(part.left_out for part in parts),
        late_p50=max(part.late_p50 for part in parts),
        late_p99=max(part.late_p99 for part in parts),
    )


def _describe(measured: Measured) -> dict[str, Any]:
    return {
        "cycles/s": measured.rate,
        "cpu ms/cycle": measured.cpu_ms,
        "late p50 s": measured.late_p50,
        "late p99 s": measured.late_p99,
        "rss MB": measured.rss_bytes / 1e6,
        "run twice": measured.repeated,
        "left out": measured.left_out,
    }
