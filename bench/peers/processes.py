"""How the processes of contestants are started, each under a parent watch."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Mapping

from bench.peers.contestants import Contestant
from bench.peers.servers import Server
from bench.peers.work import Order
from starter.local.supervised_process import kill_supervised, start_supervised

PROCESS = "bench.peers.process"


def to_order(servers: Mapping[str, Server], contestant: Contestant, count: int, delay: tuple[float, float]) -> Order:
    """Order so many messages of a contestant, which come back after `delay`, at least and at most so many seconds."""
    addresses = {name: servers[name].address(contestant.name) for name in contestant.servers}
    return Order(contestant=contestant.name, addresses=addresses, count=count, delay=delay)


async def fill(order: Order, what: str = "fill", module: str = PROCESS) -> None:
    """Start all messages, in a new store or (`send`) beside those that serve; raises RuntimeError when that fails."""
    began = time.monotonic()
    async with running(what, order, module=module) as process:
        code = await process.wait()
    if code:
        raise RuntimeError(f"{order.contestant} could not be filled; what it said is above")
    seconds = time.monotonic() - began
    print(f"{order.contestant}: {order.count:,} messages in {seconds:,.0f} s", file=sys.stderr)


@contextlib.asynccontextmanager
async def running(
    what: str, order: Order, output: int = asyncio.subprocess.DEVNULL, module: str = PROCESS
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a process that fills or serves for the length of a `with` block; it is killed at the end of it."""
    command = [sys.executable, "-m", module, what, order.write()]
    process = await start_supervised(command, output, errors=sys.stderr.fileno())
    try:
        yield process
    finally:
        await kill_supervised(process)


@contextlib.asynccontextmanager
async def serving(order: Order) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run a process that serves for the length of a `with` block, which begins when it is up.

    Raises RuntimeError when it ends before that.
    """
    async with running("serve", order, asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{"):
                break
        else:
            raise RuntimeError(f"{order.contestant} ended by itself; what it said is above")
        yield process
