"""The cold cycle under other numbers: cycles per run, cache, slots, pollers, sandbox, gzip; each beside the default.

The table that decided the defaults in `shared/settings.py` and `worker/profiles.py`.
"""

from dataclasses import replace
from typing import Any

from bench.harness import fill, fresh_server, new_prefix, report, run_worker
from bench.worker_process import Order

SECONDS = 12.0
SLEEPERS = 3000
DELAY = 20.0
VARIANTS: dict[str, dict[str, Any]] = {
    "cycles_per_run 2": {"cycles_per_run": 2},
    "cycles_per_run 10": {"cycles_per_run": 10},
    "slots 16, cache 100": {"slots": 16},
    "slots 64, cache 100": {"slots": 64},
    "cache 32": {"cache": 32},
    "cache 1000": {"cache": 1000},
    "sandbox": {"sandbox": True},
    "gzip": {"gzip": True},
    "DueAt written every cycle": {"index_after": 0.0},
}


async def main(arguments: list[str]) -> None:
    """Measure every variant, or those whose name contains an argument, each right after the default."""
    chosen = {n: v for n, v in VARIANTS.items() if not arguments or any(a in n for a in arguments)}
    rows: list[dict[str, Any]] = []
    async with fresh_server() as server:
        prefix = new_prefix()
        await fill(await server.connect(), "dormice", prefix, SLEEPERS, DELAY)
        default = Order(what="dormice", prefix=prefix, seconds=SECONDS, warmup=4)
        await run_worker(server, default)  # the first cycles of all are not like the later ones
        for name, change in chosen.items():
            base = await run_worker(server, default)
            if "cycles_per_run" in change:
                # one round unmeasured: in it histories still have the length that the default gave them
                await run_worker(server, replace(default, **change))
            other = await run_worker(server, replace(default, **change))
            rows.append(
                {
                    "variant": name,
                    "cycles/s": other.rate,
                    "default": base.rate,
                    "ratio": other.rate / base.rate,
                    "cpu ms/cycle": other.cpu_ms,
                    "default cpu": base.cpu_ms,
                    "rss MB": other.rss_bytes / 1e6,
                }
            )
    report("tuning", rows, note="cold cycles, 3,000 sleepers due every 20 s; ratio = variant / default just before it")
