"""Spark under measurement: its commands as processes, what they report, and the memory of their process trees."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from bench.pack_filling import HOUR
from bench.pack_spread import count_full_packs
from shared.messages.encoding import SIZE_MAX
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import kill_supervised, start_supervised

PACK_SIZE = 1000
SAMPLE_SECONDS = 0.25
FAR = (datetime.now(UTC) + timedelta(days=30)).isoformat(timespec="seconds")
"""Nothing runs while starts are measured."""


@dataclass(slots=True)
class Measured:
    """What a process reported in its last line, and the most memory that each sort of process of its family took."""

    reported: dict[str, Any] = field(default_factory=dict[str, Any])
    rss: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("driver", "JVM", "workers"), 0))
    rate: float = 0.0
    task_rate: float = 0.0


def packing(server: EmbeddedServer, folder: Path, kind: str, count: int, delay: float = HOUR) -> dict[str, str]:
    """Write a handler of messages in packs, and give the variables by which commands find it and the server.

    The messages come back every `delay` seconds.
    """
    (folder / "bench_handlers.py").write_text(
        "from datetime import timedelta\n"
        "from activities import Again, Pack, handler\n"
        f"@handler('{kind}', encoding=Pack(packs={count_full_packs(count, PACK_SIZE)}, size={SIZE_MAX}))\n"
        "async def come_back(message, ctx):\n"
        f"    return Again(after=timedelta(seconds={delay}))\n"
    )
    return {
        "TEMPORAL_ADDRESS": server.address,
        "DORMICE_TASK_QUEUE_PREFIX": kind,
        "DORMICE_HANDLERS": "bench_handlers",
        "PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}",
    }


def dormice(*arguments: str) -> list[str]:
    """Give the command line of `dormice spark …`, which reports as JSON."""
    return [sys.executable, "-m", "starter", "spark", *arguments, "--json"]


def write_rows(folder: Path, kind: str, prefix: str, count: int, due: str | None = FAR) -> Path:
    """Write messages as JSON lines, due long after the measurement unless something else is said; None is at once."""
    path = folder / "rows.jsonl"
    with path.open("w") as stream:
        for number in range(count):
            payload = {"delay": HOUR, "url": f"https://example.org/{number}"}
            row = {"kind": kind, "id": f"{prefix}-{number}", "scheduled_at": due, "payload": payload}
            stream.write(json.dumps(row) + "\n")
    return path


async def measure(command: list[str], variables: Mapping[str, str]) -> Measured:
    """Run a command to its end; raises RuntimeError with its last words when it fails."""
    measured = Measured()
    environment = {**os.environ, **variables}
    with tempfile.TemporaryFile() as errors:
        process = await start_supervised(command, asyncio.subprocess.PIPE, environment, errors=errors.fileno())
        assert process.stdout is not None
        watching = asyncio.create_task(_watch(process.pid, measured.rss))

        try:
            out = await process.stdout.read()
            await process.wait()
        finally:
            watching.cancel()
            await kill_supervised(process)

        if process.returncode != 0:
            errors.seek(0)
            raise RuntimeError(errors.read().decode(errors="replace")[-500:])

    measured.reported = json.loads(out.splitlines()[-1])
    return measured


@contextlib.asynccontextmanager
async def run_in_background(command: list[str], variables: Mapping[str, str]) -> AsyncGenerator[None]:
    """Run a command for the length of a `with` block, then kill it and all that it has started."""
    process = await start_supervised(command, asyncio.subprocess.DEVNULL, {**os.environ, **variables})
    family = [psutil.Process(process.pid)]

    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family += family[0].children(recursive=True)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        await process.wait()


async def _watch(process_id: int, maximum: dict[str, int]) -> None:
    watch = psutil.Process(process_id)
    while True:
        seen = dict.fromkeys(maximum, 0)
        with contextlib.suppress(psutil.NoSuchProcess):
            for root in watch.children():
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        seen[_sort_of(process, root)] += process.memory_info().rss
        for sort, size in seen.items():
            maximum[sort] = max(maximum[sort], size)
        await asyncio.sleep(SAMPLE_SECONDS)


def _sort_of(process: psutil.Process, root: psutil.Process) -> str:
    if process == root:
        return "driver"
    return "JVM" if "java" in process.name() else "workers"
