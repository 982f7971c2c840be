"""Workers in this process, for the length of an `async with` block."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from temporalio.client import Client

from worker.run import WorkerPlan, run_workers


@asynccontextmanager
async def run_plan(client: Client, plan: WorkerPlan) -> AsyncGenerator[None]:
    """Run the workers of a plan; they drain at the end of the block, also if it fails."""
    stopping = asyncio.Event()
    running = asyncio.create_task(run_workers(client, plan, stopping))
    try:
        yield
    finally:
        stopping.set()
        await running
