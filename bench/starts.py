"""Starts per second: `dormice load` of a JSONL file against the smallest possible client loop on the same server."""

import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness import alternate, fresh_server, new_prefix, read_count, report
from starter.local.embedded import EmbeddedServer

COUNT = 4000
PAIRS = 2


async def main(arguments: list[str]) -> None:
    """Start `COUNT` (or as many as the argument says) bare workflows and as many messages, pair by pair."""
    count = read_count(arguments, COUNT)
    rates: dict[str, list[float]] = {"bare client": [], "dormice load": []}

    async with fresh_server() as server:
        await _start_bare(server, 200)  # the first starts on an empty server are slower
        starters = {"bare client": _start_bare, "dormice load": _load}
        for number in range(PAIRS):
            for what, start in alternate(starters, number).items():
                rates[what].append(await start(server, count))

    ratio = median(rates["dormice load"]) / median(rates["bare client"])
    rows: list[dict[str, Any]] = [
        {"what": what, "starts/s": median(seen), "ratio": ratio if what == "dormice load" else 1.0}
        for what, seen in rates.items()
    ]
    report("starts", rows, note=f"{count:,} starts each, whole process, start-up of the interpreter included")


async def _start_bare(server: EmbeddedServer, count: int) -> float:
    prefix = new_prefix()
    program = (
        "import asyncio, os, sys\n"
        "from temporalio.client import Client\n"
        "from temporalio.service import GrpcCompression\n"
        "from bench.bare_loop import start_bare\n"
        "async def main():\n"
        "    client = await Client.connect(sys.argv[1], grpc_compression=GrpcCompression.NONE)\n"
        "    ids = [f'{sys.argv[2]}-{n}' for n in range(int(sys.argv[3]))]\n"
        "    await start_bare(client, sys.argv[2], ids, delay=3600, cycles=5)\n"
        "asyncio.run(main())\n"
        "os._exit(0)\n"
    )
    return count / await _time([sys.executable, "-c", program, server.address, prefix, str(count)], server)


async def _load(server: EmbeddedServer, count: int) -> float:
    prefix = new_prefix()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "messages.jsonl")
        path.write_text(  # noqa: ASYNC240 — before the clock starts
            "".join(
                json.dumps({"kind": "echo", "id": f"{prefix}-{n}", "payload": {"delay": 3600}}) + "\n"
                for n in range(count)
            )
        )
        command = [sys.executable, "-m", "starter", "load", str(path), "--set", f"task_queue_prefix={prefix}"]
        return count / await _time(command, server)


async def _time(command: list[str], server: EmbeddedServer) -> float:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TEMPORAL_ADDRESS": server.address},
    )
    try:
        _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()

    if process.returncode != 0:
        raise RuntimeError(errors.decode(errors="replace")[-500:])
    return time.monotonic() - began
