"""Reading packed messages, for the scenario `packs`: lists beside an idle and a busy worker, and counts from memos."""

import asyncio
import os
import resource
import sys
import time
from dataclasses import replace
from typing import Any

from bench.harness import fresh_server, new_prefix, report, working
from bench.pack_filling import DAY, HOUR, Filling, start_packs, start_sorted, to_order, wait_until_asleep
from starter.local.embedded import EmbeddedServer

LIST_COUNT = 200_000
COUNT_COUNT = 10_000_000
SIZE = 1000
PORTION = 1_000_000
BUSY_DELAY = 20.0  # 200,000 that come back so soon are more than a worker can run
ROUNDS = 3
SETTLE_SECONDS = 20.0


async def measure_list(count: int = LIST_COUNT) -> None:
    """Seconds and processor seconds of `dormice list` of all, by what the worker does meanwhile."""
    filling = Filling(
        prefix=new_prefix(), count=count, size=SIZE, delay=BUSY_DELAY, due_in=HOUR, coalesce=BUSY_DELAY / 12
    )
    rows: list[dict[str, Any]] = []

    async with fresh_server() as server:
        client = await server.connect()
        async with working(server, to_order(filling)):
            await start_packs(client, filling, filling.envelopes())
            await wait_until_asleep(client, filling)
            rows += [{"worker": "idle"} | await _time_list(server, filling) for _ in range(ROUNDS)]
        rows.append({"worker": "none"} | await _time_list(server, filling))

    busy = replace(filling, prefix=new_prefix(), due_in=0.0)
    async with fresh_server() as server, working(server, to_order(busy)):
        await start_packs(await server.connect(), busy, busy.envelopes())
        await asyncio.sleep(SETTLE_SECONDS)
        rows += [{"worker": "busy"} | await _time_list(server, busy) for _ in range(ROUNDS)]

    report(
        "packs", rows, note=f"dormice list --json of {count:,} in packs of about {SIZE:,}, whole command", case="list"
    )


async def _time_list(server: EmbeddedServer, filling: Filling) -> dict[str, Any]:
    seen = await _time(server, filling.prefix, "list", "--kind", filling.prefix, "--limit", str(filling.count + 1))
    assert seen["lines"] == filling.count, seen
    return seen


async def measure_count(count: int = COUNT_COUNT) -> None:
    """Seconds of `list --count` and `forecast`, in turns; no worker runs, so all counts are those of first chunks."""
    portions = [
        Filling(prefix=new_prefix(), count=min(count, PORTION), size=SIZE, delay=DAY, due_in=HOUR, due_spread=DAY)
        for _ in range(max(1, count // PORTION))
    ]
    rows: list[dict[str, Any]] = []

    async with fresh_server() as server:
        client = await server.connect()
        for portion in portions:
            await start_sorted(client, portion)
        for _ in range(ROUNDS):
            for arguments in (["list", "--count"], ["forecast"]):
                seen = await _time(server, "", *arguments)
                rows.append({"command": " ".join(arguments), "packs": sum(p.packs for p in portions)} | seen)

    report("packs", rows, note=f"{count:,} messages in packs of about {SIZE:,}, whole commands", case="count")


async def _time(server: EmbeddedServer, prefix: str, *arguments: str) -> dict[str, Any]:
    """Run a command to its end; gives the lines it has printed, its seconds and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "starter",
        *arguments,
        "--json",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "TEMPORAL_ADDRESS": server.address, "DORMICE_TASK_QUEUE_PREFIX": prefix or "none"},
    )
    assert process.stdout is not None
    lines = 0

    while chunk := await process.stdout.read(1 << 20):
        lines += chunk.count(b"\n")

    assert await process.wait() == 0, arguments
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"lines": lines, "seconds": time.monotonic() - began, "processor seconds": processor}
