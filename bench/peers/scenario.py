"""The scenario `peers`: cycles a second, by turns."""

import asyncio
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from bench.harness import alternate, report
from bench.peers.contestants import CONTESTANTS, FLOOR, Contestant, find_contestant
from bench.peers.kills import measure_kills
from bench.peers.processes import fill, running, to_order
from bench.peers.servers import Server, find_redis, run_servers
from bench.peers.work import Order
from bench.worker_process import Measured

ROUNDS = 5
DELAY = (10.0, 15.0)
WARMUP, SECONDS = 8.0, 12.0


async def main(arguments: list[str]) -> None:
    """Measure all contestants, or those that are named; with `kills` first, kill them."""
    named, kills = [argument for argument in arguments if argument != "kills"], "kills" in arguments
    takers = CONTESTANTS if kills else [*CONTESTANTS, FLOOR]
    known = [one.name for one in takers]
    if strange := [name for name in named if name not in known]:
        print(f"peers: there is no contestant '{strange[0]}'; use kills, or any of {', '.join(known)}")
        return
    contestants = [find_contestant(name) for name in named] if named else takers
    async with run_servers() as servers:
        await (measure_kills if kills else _measure_all)(servers, contestants)


async def _measure_all(servers: Mapping[str, Server], contestants: list[Contestant]) -> None:
    seen: dict[str, list[Measured]] = {contestant.name: [] for contestant in contestants}
    orders = {one.name: to_order(servers, one, one.count, DELAY) for one in contestants}
    for order in orders.values():
        await fill(order)
    for number in range(-1, ROUNDS):  # the first round is not like the later ones, and not counted
        for name, contestant in alternate({c.name: c for c in contestants}, number).items():
            measured = await _measure(
                replace(to_order(servers, contestant, contestant.count, DELAY), warmup=WARMUP, seconds=SECONDS)
            )
            print(f"round {number}: {name} {measured.rate:,.0f} cycles/s", file=sys.stderr)
            if number >= 0:
                seen[name].append(measured)
    first = seen[contestants[0].name]
    rows = [
        {
            "who": contestant.title,
            "messages": contestant.count,
            "cycles/s": median(m.rate for m in seen[contestant.name]),
            "cpu ms/cycle": median(m.cpu_ms for m in seen[contestant.name]),
            "ratio": median(a.rate / b.rate for a, b in zip(seen[contestant.name], first, strict=True)),
        }
        for contestant in contestants
    ]
    report("peers", rows, note=f"one worker process each, {ROUNDS} rounds by turns; {_describe_versions()}")


def _describe_versions() -> str:
    command = [find_redis(), "--version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 — found on the PATH
    packages = ("apscheduler", "procrastinate", "dbos", "redis", "aiokafka", "temporalio")
    names = [f"{name} {importlib.metadata.version(name)}" for name in packages]
    return ", ".join([f"Redis {said.stdout.split()[2].removeprefix('v=')}", *names])


async def _measure(order: Order) -> Measured:
    async with running("serve", order, asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{") and (fields := json.loads(line)):
                return Measured(**fields)
    raise RuntimeError(f"{order.contestant} ended by itself; what it said is above")
