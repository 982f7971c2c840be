"""The scenario `peers kills`: what is gone, or lives twice, once workers and then servers were killed."""

import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.peers.contestants import Contestant
from bench.peers.processes import fill, running, to_order
from bench.peers.servers import Server
from bench.peers.work import Order, read_ledger
from starter.local.supervised_process import kill_supervised

KILLS = 5
SERVER_KILLS = 3
DELAY = (2.0, 4.0)
IO_SECONDS = 0.3
"""A call lasts so long that kills meet some."""

KILLED_AFTER = (1.0, 5.0)
"""So long after a call a worker is killed, or after the start of a server."""

PATIENCE_SECONDS = 75.0
"""A worker that was killed in the midst of a task may have to wait for the task's time limit."""

QUIET_SECONDS = 120.0
"""What has not come back so long after the last kill is gone: leases and time limits of all are shorter."""

LAST_SECONDS = 40.0
RESTART_SECONDS = 0.5


async def measure_kills(servers: Mapping[str, Server], contestants: Sequence[Contestant]) -> None:
    """Have all contestants at work, side by side and far below what they can do; kill, and read their ledgers."""
    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        workers = [_Worker(_to_order(servers, one, folder), one) for one in contestants]
        for worker in workers:
            await fill(worker.order)

        for worker in workers:
            worker.start()

        try:
            await asyncio.gather(*(_kill_often(worker) for worker in workers))
            workers_killed_at = time.time()
            await asyncio.sleep(QUIET_SECONDS)
            await _kill_servers([servers[name] for name in sorted({n for one in contestants for n in one.servers})])
            servers_killed_at = time.time()
            await asyncio.sleep(QUIET_SECONDS)
        finally:
            for worker in workers:
                await worker.stop()

        rows = [_count_losses(worker, workers_killed_at, servers_killed_at) for worker in workers]

    note = (
        f"kill -9 of each worker {KILLS} times, then of each server {SERVER_KILLS} times; gone = not called again "
        f"within {QUIET_SECONDS:.0f} s; lives twice = a version is called twice in the last {LAST_SECONDS:.0f} s"
    )
    report("peers", rows, note=note, case="kills")


def _to_order(servers: Mapping[str, Server], contestant: Contestant, folder: str) -> Order:
    ledger = str(Path(folder, contestant.name))
    return replace(to_order(servers, contestant, contestant.kill_count, DELAY), io_seconds=IO_SECONDS, ledger=ledger)


async def _kill_often(worker: "_Worker") -> None:
    ledger = Path(worker.order.ledger)
    for _ in range(KILLS):
        before = _size(ledger)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while _size(ledger) == before:  # noqa: ASYNC110 — a file is watched; the worker has just been started
                    await asyncio.sleep(0.1)
        await asyncio.sleep(random.uniform(*KILLED_AFTER))
        await worker.kill()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def _kill_servers(servers: Sequence[Server]) -> None:
    for server in [server for server in servers for _ in range(SERVER_KILLS)]:
        await asyncio.sleep(random.uniform(*KILLED_AFTER))
        await server.kill()
        await server.start()


def _count_losses(worker: "_Worker", workers_killed_at: float, servers_killed_at: float) -> dict[str, Any]:
    ledger = Path(worker.order.ledger)
    count = worker.order.count
    ever = read_ledger(ledger)
    between = read_ledger(ledger, workers_killed_at, workers_killed_at + QUIET_SECONDS)
    last_at = servers_killed_at + QUIET_SECONDS
    after = read_ledger(ledger, servers_killed_at, last_at)
    last = read_ledger(ledger, last_at - LAST_SECONDS, last_at)

    return {
        "who": worker.contestant.title,
        "messages": count,
        "calls": sum(versions.total() for versions in ever.values()),
        "made again": sum(versions.total() - len(versions) for versions in ever.values()),
        "gone, workers killed": count - len(between),
        "gone in all": count - len(after),
        "lives twice": sum(versions.total() > len(versions) for versions in last.values()),
    }


@dataclass(slots=True)
class _Worker:
    """A contestant's process that is started again whenever it has ended, as a supervisor does."""

    order: Order
    contestant: Contestant
    _process: asyncio.subprocess.Process | None = None
    _keeping: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def start(self) -> None:
        """Begin to keep it running."""
        self._keeping.append(asyncio.create_task(self._keep()))

    async def stop(self) -> None:
        """End it."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def kill(self) -> None:
        """Kill the process that runs now."""
        if self._process is not None:
            await kill_supervised(self._process)

    async def _keep(self) -> None:
        while True:
            async with running("serve", self.order) as self._process:
                await self._process.wait()
            await asyncio.sleep(RESTART_SECONDS)
