"""One worker process against two, on packs: cycles, the workers' processor time for each, and the server's share.

In the case `computing` each handler needs 2 ms of processor time, so that workers are the limit and not the server.
"""

import asyncio
from dataclasses import replace
from statistics import median
from typing import Any

import psutil

from bench.harness import alternate, fresh_server, new_prefix, read_cpu, report, run_worker
from bench.pack_filling import SPREAD, Filling, start_packs
from bench.packs import CACHE, COLD_DELAY, SIZE, SLOTS
from bench.worker_process import Measured, Order
from starter.local.embedded import EmbeddedServer

PAIRS = 5
SECONDS = 12.0
COUNT = 300 * SIZE
CASES = {"5 ms of I/O": {"io_seconds": 0.005}, "computing": {"io_seconds": 0.0, "work_seconds": 0.002}}


async def main(arguments: list[str]) -> None:  # noqa: ARG001 — takes none
    """Measure both cases, one and two processes by turns."""
    rows = [row for case, costs in CASES.items() for row in await _compare(case, costs)]
    note = f"{COUNT // SIZE} packs of {SIZE}, more due than can run; medians of {PAIRS} rounds; cores: used of 2"
    report("processes", rows, note=note)


async def _compare(case: str, costs: dict[str, float]) -> list[dict[str, Any]]:
    seen: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    async with fresh_server() as server:
        filling = Filling(prefix=new_prefix(), count=COUNT, size=SIZE, delay=COLD_DELAY, coalesce=1.0)
        await start_packs(await server.connect(), filling, filling.envelopes())
        order = Order(what="pack", prefix=filling.prefix, seconds=SECONDS, cache=CACHE, slots=SLOTS, tolerance=1.0)
        order = replace(order, spread=SPREAD, **costs)
        await _run_processes(server, order, 1)  # unmeasured: the first round of all is not like the later ones
        for number in range(PAIRS):
            for processes in alternate({1: 1, 2: 2}, number):
                seen[processes].append(await _run_processes(server, order, processes))

    return [
        {
            "case": case,
            "processes": processes,
            **{name: median(run[name] for run in runs) for name in runs[0]},
            "ratio": median(a["cycles/s"] / b["cycles/s"] for a, b in zip(runs, seen[1], strict=True)),
        }
        for processes, runs in seen.items()
    ]


async def _run_processes(server: EmbeddedServer, order: Order, processes: int) -> dict[str, float]:
    (program,) = psutil.Process(server.process_id).children()
    before = read_cpu(program)
    loop = asyncio.get_running_loop()
    began = loop.time()
    measured = await asyncio.gather(*(run_worker(server, order) for _ in range(processes)))
    server_cores = (read_cpu(program) - before) / (loop.time() - began)
    cycles = sum(m.cycles for m in measured)
    cpu = sum(m.cpu_seconds for m in measured)

    return {
        "cycles/s": sum(m.rate for m in measured),
        "worker cpu ms/cycle": 1000 * cpu / cycles,
        "worker cores": sum(map(_cores, measured)),
        "server cores": server_cores,
    }


def _cores(measured: Measured) -> float:
    return measured.cpu_seconds / measured.seconds
