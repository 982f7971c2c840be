"""Cycles per second, warm and cold, against the bare loop on the same server in the same run.

Cold is the normal case with millions asleep: fifty times more sleeping workflows than cached ones, so every wake
replays. More is always due than the machine can do, so the rate is what it can do.
"""

from statistics import median
from typing import Any

from bench.harness import alternate, choose, fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Measured, Order

SECONDS = 10.0
PAIRS = 9  # many short ones: the speed of a shared machine changes from minute to minute
CACHE = 60
SLEEPERS = 50 * CACHE
COLD_DELAY = 20.0  # 3,000 every 20 s are 150 a second, twice what two cores do
WARM = 300
WARM_DELAY = 1.0  # the shortest delay there is


async def main(arguments: list[str]) -> None:
    """Measure `warm` and `cold`, or those named; every pair runs bare and dormice one after the other."""
    rows: list[dict[str, Any]] = []
    for name in choose(arguments, ("cold", "warm")):
        rows += await _compare(name)
    report("cycles", rows, note="rate = cycles/s; ratio = dormice / bare, median of the pairs")


async def _compare(name: str) -> list[dict[str, Any]]:
    count, delay = (SLEEPERS, COLD_DELAY) if name == "cold" else (WARM, WARM_DELAY)
    seen: dict[str, list[Measured]] = {"bare": [], "dormice": []}

    async with fresh_server() as server:
        client = await server.connect()
        prefixes = {what: new_prefix() for what in seen}
        for what, prefix in prefixes.items():
            await fill(client, what, prefix, count, delay)
        for number in range(PAIRS):
            for what, prefix in alternate(prefixes, number).items():
                cache = CACHE if name == "cold" else 1000
                order = Order(what=what, prefix=prefix, seconds=SECONDS, cache=cache, slots=30)
                seen[what].append(await run_worker(server, order))

    ratio = median(d.rate / b.rate for d, b in zip(seen["dormice"], seen["bare"], strict=True))
    return [
        {
            "case": name,
            "what": what,
            "cycles/s": median(m.rate for m in runs),
            "cpu ms/cycle": median(m.cpu_ms for m in runs),
            "rss MB": max(m.rss_bytes for m in runs) / 1e6,
            "ratio": ratio if what == "dormice" else 1.0,
        }
        for what, runs in seen.items()
    ]
