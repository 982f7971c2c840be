"""A thousand, ten thousand, fifty thousand asleep: the worker's memory and rate must not notice; bytes per message.

The sleepers are due in an hour and never touched; a fixed set of other messages is worked on beside them.
"""

from statistics import median
from typing import Any

from bench.harness import database_bytes, fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Order

STEPS = (1_000, 10_000, 50_000)
ACTIVE = 3000
SECONDS = 15.0
ROUNDS = 2


async def main(arguments: list[str]) -> None:
    """Fill up to each step (or those given) and measure a worker on the active set after each."""
    steps = [int(a) for a in arguments] or list(STEPS)
    rows: list[dict[str, Any]] = []
    async with fresh_server() as server:
        client = await server.connect()
        active, asleep = new_prefix(), new_prefix()
        await fill(client, "dormice", active, ACTIVE, 20.0)
        await run_worker(server, Order(what="dormice", prefix=active, seconds=20))
        done = 0
        for step in steps:
            before = database_bytes(server)
            rate = await fill(client, "asleep", asleep, step - done, 3600, first=f"s{step}-")  # due in an hour
            size = (database_bytes(server) - before) / (step - done)
            done = step
            runs = [
                await run_worker(server, Order(what="dormice", prefix=active, seconds=SECONDS)) for _ in range(ROUNDS)
            ]
            rows.append(
                {
                    "asleep": step,
                    "starts/s": rate,
                    "bytes/message": size,
                    "cycles/s": median(m.rate for m in runs),
                    "worker rss MB": max(m.rss_bytes for m in runs) / 1e6,
                }
            )
    report("sleepers", rows, note=f"{ACTIVE:,} others at work, which is what the rate and the memory are of")
