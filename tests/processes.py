"""Worker processes for tests, started from the checkout and always ended by their id."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil

from shared.settings import Settings
from starter.embedded import EmbeddedServer

ROOT = Path(__file__).parent.parent


@contextlib.asynccontextmanager
async def worker_process(
    server: EmbeddedServer, settings: Settings, *arguments: str
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run `python -m worker` with the ledger's handlers against a server; ended with SIGKILL if still alive."""
    with (server.options.data / "worker.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "worker",
            *("--processes", "1", "--drain-seconds", "3", *arguments),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            env={
                **os.environ,
                "TEMPORAL_ADDRESS": server.address,
                "DORMICE_HANDLERS": "tests.handlers",
                "DORMICE_TASK_QUEUE_PREFIX": settings.task_queue_prefix,
                "DORMICE_SANDBOX": str(settings.sandbox),
            },
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def kill_and_restart(server: EmbeddedServer) -> None:
    """Kill the server program itself, not the leash that our fixture ends it by, and start it again on its data."""
    assert server.process_id is not None
    for child in psutil.Process(server.process_id).children():
        child.kill()
    await server.stop()
    await server.start()
