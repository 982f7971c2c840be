"""The whole way of many rows through Spark, for the scenario `spark`: prepare, start, all asleep, reconcile."""

import tempfile
import time
from pathlib import Path
from typing import Any

from bench.harness import fresh_server, new_prefix, report
from bench.pack_filling import Filling, wait_until_asleep
from bench.spark_processes import PACK_SIZE, Measured, dormice, measure, packing, run_in_background, write_rows

COUNT = 10_000_000


async def run_pipeline(counts: list[int], worker: list[str]) -> None:
    """Seconds of each step for messages that are due in a month, beside a worker from the start on."""
    count = counts[0] if counts else COUNT
    kind = new_prefix()
    table = list[dict[str, Any]]()

    async with fresh_server() as server:
        with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
            variables = packing(server, Path(folder), kind, count)
            rows = write_rows(Path(folder), kind, kind, count)
            manifest = str(Path(folder, "manifest"))
            table.append(await _time("prepare", ["prepare", str(rows), manifest], variables))
            rows.unlink()

            async with run_in_background(worker, variables):
                table.append(await _time("start", ["start", manifest], variables))
                began = time.monotonic()
                filling = Filling(prefix=kind, count=count, size=PACK_SIZE, delay=0)
                await wait_until_asleep(await server.connect(), filling)
                table.append({"step": "until all are asleep", "seconds": time.monotonic() - began})
                table.append(await _time("reconcile", ["reconcile", manifest], variables))

    table.append({"step": "in all", "seconds": sum(row["seconds"] for row in table)})
    report("spark", table, note=f"{count:,} rows, whole commands, packs of about {PACK_SIZE:,}", case="pipeline")


async def _time(step: str, arguments: list[str], variables: dict[str, str]) -> dict[str, Any]:
    began = time.monotonic()
    measured: Measured = await measure(dormice(*arguments), variables)
    seconds = time.monotonic() - began
    print(f"{step}: {seconds:.0f} s, {measured.reported}", flush=True)
    return {"step": step, "seconds": seconds} | {f"{sort} MB": size / 1e6 for sort, size in measured.rss.items()}
