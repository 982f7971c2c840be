"""A thousand, ten thousand, fifty thousand asleep: the worker's memory and rate must not notice; bytes per message.

Each number has a server of its own, where the sleeping messages are due in an hour and never touched. Beside them a
fixed set of other messages, and of bare loops, is worked on: a short window on one server after the other, round after
round, so that what changes with the hour on a shared machine changes for all alike.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from bench.harness import alternate, database_bytes, fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Measured, Order
from starter.local.embedded import EmbeddedServer

STEPS = (1_000, 10_000, 50_000)
ACTIVE = 2000
SECONDS = 10.0
ROUNDS = 7
CONTESTANTS = ("bare", "dormice")

Seen = dict[str, list[Measured]]


async def main(arguments: list[str]) -> None:
    """Fill a server for each step (or those given) and measure workers on the active sets of all, by turns."""
    steps = [int(a) for a in arguments] or list(STEPS)
    async with AsyncExitStack() as stack:
        servers = {step: await stack.enter_async_context(fresh_server()) for step in steps}
        prefixes = {what: new_prefix() for what in CONTESTANTS}
        sizes = {step: await _fill(server, step, prefixes) for step, server in servers.items()}
        seen: dict[int, Seen] = {step: {what: [] for what in CONTESTANTS} for step in steps}
        for number in range(-1, ROUNDS):
            for step, server in alternate(servers, number).items():
                for what, prefix in prefixes.items():
                    measured = await run_worker(server, Order(what=what, prefix=prefix, seconds=SECONDS, warmup=3.0))
                    if number >= 0:  # the first cycles of all are not like the later ones
                        seen[step][what].append(measured)

    rows = [_describe(step, sizes[step], seen[step], seen[steps[0]]) for step in steps]
    note = (
        f"{ACTIVE:,} others at work, which is what rate and memory are of; "
        "changes are against the first row, round by round"
    )
    report("sleepers", rows, note=note)


async def _fill(server: EmbeddedServer, count: int, active: Mapping[str, str]) -> float:
    """Start what is at work and what is asleep; gives the bytes on disk for each message asleep."""
    client = await server.connect()
    for what, prefix in active.items():
        await fill(client, what, prefix, ACTIVE, 20.0)
    before = database_bytes(server)
    await fill(client, "asleep", new_prefix(), count, 7200)
    return (database_bytes(server) - before) / count


def _describe(step: int, size: float, seen: Seen, minimum: Seen) -> dict[str, Any]:
    def change(what: str) -> float:
        return median(m.rate / first.rate for m, first in zip(seen[what], minimum[what], strict=True))

    return {
        "asleep": step,
        "bytes/message": size,
        "bare cycles/s": median(m.rate for m in seen["bare"]),
        "bare, change": change("bare"),
        "cycles/s": median(m.rate for m in seen["dormice"]),
        "change": change("dormice"),
        "worker rss MB": median(m.rss_bytes for m in seen["dormice"]) / 1e6,
    }
