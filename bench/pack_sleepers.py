"""Cycles beside few and many packs that sleep, for the scenario `packs`: two servers, measured by turns."""

import contextlib
from dataclasses import replace
from statistics import median
from typing import Any

from bench.harness import alternate, database_bytes, fresh_server, new_prefix, report, run_worker, working
from bench.pack_filling import DAY, Filling, start_packs, start_sorted, to_order, wait_until_asleep
from bench.worker_process import Measured, Order
from starter.local.embedded import EmbeddedServer

FEW = 100_000
MANY = 10_000_000
PAIRS = 5
CACHE = 60
SLOTS = 30
SECONDS = 12.0
WARMUP = 5.0

AWAKE = Filling(prefix="", count=100_000, size=200, delay=10.0, coalesce=1.0)
"""More is always due than the machine can do."""


async def measure_sleepers(count: int = MANY) -> None:
    """Cold cycles a second of the same packs, on a server where FEW others sleep and on one where `count` do."""
    seen: dict[int, list[Measured]] = {FEW: [], count: []}
    async with contextlib.AsyncExitStack() as stack:
        servers = {asleep: await stack.enter_async_context(fresh_server()) for asleep in seen}
        orders = {asleep: await _fill(server, asleep) for asleep, server in servers.items()}
        for asleep, order in orders.items():  # unmeasured: the first round of all is not like the later ones
            await run_worker(servers[asleep], order)

        for number in range(PAIRS):
            for asleep, order in alternate(orders, number).items():
                seen[asleep].append(await run_worker(servers[asleep], order))

        rows: list[dict[str, Any]] = [
            {
                "asleep": asleep,
                "cycles/s": median(m.rate for m in runs),
                "cpu ms/cycle": median(m.cpu_ms for m in runs),
                "ratio": median(m.rate / few.rate for m, few in zip(runs, seen[FEW], strict=True)),
                "disk MB": database_bytes(servers[asleep]) / 1e6,
            }
            for asleep, runs in seen.items()
        ]

    note = f"{AWAKE.packs} packs of {AWAKE.size} run beside packs of 1,000 that sleep; ratio = to the first row"
    report("packs", rows, note=note, case="sleepers")


async def _fill(server: EmbeddedServer, asleep: int) -> Order:
    """Let a worker take in what is to sleep for a day, then start what is to run; returns the order for the latter."""
    client = await server.connect()
    sleeping = Filling(prefix=new_prefix(), count=asleep, size=1000, delay=DAY, due_in=DAY, due_spread=DAY, coalesce=60)
    async with working(server, to_order(sleeping)):
        await start_sorted(client, sleeping)
        await wait_until_asleep(client, sleeping)

    print(f"{asleep:,} are asleep", flush=True)
    awake = replace(AWAKE, prefix=new_prefix())
    await start_packs(client, awake, awake.envelopes())
    return to_order(awake, seconds=SECONDS, warmup=WARMUP, cache=CACHE, slots=SLOTS)
