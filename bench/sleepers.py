"""A thousand, ten thousand, fifty thousand asleep: the worker's memory and rate must not notice; bytes per message.

The sleepers are due in an hour and never touched; a fixed set of other messages, and of bare loops, is worked on beside
them: what slows both alike is the machine or the server, not the number of messages asleep in dormice.
"""

from statistics import median
from typing import Any

from bench.harness import alternate, database_bytes, fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Measured, Order

STEPS = (1_000, 10_000, 50_000)
ACTIVE = 2000
SECONDS = 15.0
ROUNDS = 2


async def main(arguments: list[str]) -> None:
    """Fill up to each step (or those given) and measure a worker on the active set after each."""
    steps = [int(a) for a in arguments] or list(STEPS)
    rows: list[dict[str, Any]] = []
    async with fresh_server() as server:
        client = await server.connect()
        active, asleep = {"bare": new_prefix(), "dormice": new_prefix()}, new_prefix()
        for what, prefix in active.items():
            await fill(client, what, prefix, ACTIVE, 20.0)
            await run_worker(server, Order(what=what, prefix=prefix, seconds=20))
        done = 0
        for step in steps:
            before = database_bytes(server)
            rate = await fill(client, "asleep", asleep, step - done, 3600, first=f"s{step}-")  # due in an hour
            size = (database_bytes(server) - before) / (step - done)
            done = step
            seen: dict[str, list[Measured]] = {what: [] for what in active}
            for number in range(ROUNDS):
                for what, prefix in alternate(active, number).items():
                    seen[what].append(await run_worker(server, Order(what=what, prefix=prefix, seconds=SECONDS)))
            rows.append(
                {
                    "asleep": step,
                    "starts/s": rate,
                    "bytes/message": size,
                    "bare cycles/s": median(m.rate for m in seen["bare"]),
                    "cycles/s": median(m.rate for m in seen["dormice"]),
                    "ratio": median(d.rate / b.rate for b, d in zip(*seen.values(), strict=True)),
                    "worker rss MB": max(m.rss_bytes for m in seen["dormice"]) / 1e6,
                }
            )
    report("sleepers", rows, note=f"{ACTIVE:,} others at work, which is what the rate and the memory are of")
