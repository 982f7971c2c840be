"""The cold cycle under other numbers: cycles a run, cache, slots, pollers, sandbox, gzip, loop; beside the default.

The table that decided the defaults in `shared/settings.py` and `worker/lanes/profiles.py`.
"""

from dataclasses import replace
from statistics import median
from typing import Any

from bench.harness import alternate, choose, fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Measured, Order
from starter.local.embedded import EmbeddedServer

SECONDS = 8.0
PAIRS = 5  # many short ones: the speed of a shared machine changes from minute to minute
SLEEPERS = 3000
DELAY = 20.0
VARIANTS: dict[str, dict[str, Any]] = {
    "cycles_per_run 2": {"cycles_per_run": 2},
    "cycles_per_run 10": {"cycles_per_run": 10},
    "slots 16": {"slots": 16},
    "slots 64": {"slots": 64},
    "cache 100": {"cache": 100},
    "cache 1000": {"cache": 1000},
    "2 pollers": {"pollers": 2},
    "5 pollers": {"pollers": 5},
    "sandbox": {"sandbox": True},
    "gzip": {"gzip": True},
    "asyncio's own loop": {"is_uvloop": False},
    "DueAt written every cycle": {"index_after": 0.0},
}


async def main(arguments: list[str]) -> None:
    """Measure every variant, or those whose name contains an argument, in pairs with the default."""
    chosen = {n: v for n, v in VARIANTS.items() if not arguments or any(a in n for a in arguments)}
    if not chosen:
        choose(arguments, VARIANTS, "variant")

    async with fresh_server() as server:
        default = Order(what="dormice", prefix=new_prefix(), seconds=SECONDS, warmup=3)
        await _prepare(server, default)
        rows = [await _compare(server, name, default, change) for name, change in chosen.items()]

    report(
        "tuning",
        rows,
        note="cold cycles, 3,000 sleepers due every 20 s; ratio = variant / default, median of the pairs",
    )


async def _prepare(server: EmbeddedServer, order: Order) -> None:
    """Start the messages of a worker, and run them for a while: their first cycles are not like the later ones."""
    await fill(await server.connect(), "dormice", order.prefix, SLEEPERS, DELAY)
    await run_worker(server, replace(order, seconds=2 * DELAY))


async def _compare(server: EmbeddedServer, name: str, default: Order, change: dict[str, Any]) -> dict[str, Any]:
    orders = {"default": default, "variant": replace(default, **change)}
    if "cycles_per_run" in change:  # histories have the length that this gives them: it takes messages of its own
        orders["variant"] = replace(orders["variant"], prefix=new_prefix())
        await _prepare(server, orders["variant"])

    seen: dict[str, list[Measured]] = {what: [] for what in orders}
    for number in range(PAIRS):
        for what, order in alternate(orders, number).items():
            seen[what].append(await run_worker(server, order))

    pairs = list(zip(seen["variant"], seen["default"], strict=True))
    return {
        "variant": name,
        "cycles/s": median(v.rate for v, _ in pairs),
        "ratio": median(v.rate / d.rate for v, d in pairs),
        "least": min(v.rate / d.rate for v, d in pairs),
        "most": max(v.rate / d.rate for v, d in pairs),
        "cpu ratio": median(v.cpu_ms / d.cpu_ms for v, d in pairs),
        "rss MB": max(v.rss_bytes for v, _ in pairs) / 1e6,
        "default rss MB": max(d.rss_bytes for _, d in pairs) / 1e6,
    }
