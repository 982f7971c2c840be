"""The batch activity without a server: processor time per message of 500, beside bare tasks that sleep equally long.

`./run bench batch [REVISION]` also measures an older revision, by turns, each time in a process of its own.
"""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from bench import batch_process
from bench.against import HERE, checked_out
from bench.harness import alternate, report

CASES = {"5 ms of I/O": 0.005, "returns at once": 0.0}
PAIRS = 5
ROUNDS = 20  # batches in each process


async def main(arguments: list[str]) -> None:
    """Measure this code, and the revision that is named."""
    async with contextlib.AsyncExitStack() as stack:
        folders = {"this": HERE}
        if arguments:
            folders = {"older": await stack.enter_async_context(checked_out(arguments[0])), **folders}
        rows = [row for case, io_seconds in CASES.items() for row in await _compare(case, io_seconds, folders)]
    older = f"; older = {arguments[0]}" if arguments else ""
    report("batch", rows, note=f"medians of {PAIRS} processes with {ROUNDS} batches of {batch_process.SIZE}{older}")


async def _compare(case: str, io_seconds: float, folders: dict[str, Path]) -> list[dict[str, Any]]:
    seen: dict[str, list[dict[str, float]]] = {what: [] for what in folders}
    for number in range(PAIRS):
        for what, folder in alternate(folders, number).items():
            seen[what].append(await _run_process(folder, io_seconds))

    first = next(iter(seen.values()))
    return [
        {
            "case": case,
            "code": what,
            "cpu us/message": median(run["batch"] for run in runs),
            "cpu us/bare task": median(run["bare"] for run in runs),
            "ratio to bare": median(run["batch"] / run["bare"] for run in runs),
            "ratio": median(a["batch"] / b["batch"] for a, b in zip(runs, first, strict=True)),
        }
        for what, runs in seen.items()
    ]


async def _run_process(folder: Path, io_seconds: float) -> dict[str, float]:
    """Measure the code of a folder in a process; what measures is this checkout's, also for older code."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", batch_process.__file__, str(io_seconds), str(ROUNDS)),
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return json.loads(output)
