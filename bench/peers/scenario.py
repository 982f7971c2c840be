"""The scenario `peers`: cycles a second, by turns, of workers that have just begun or, `warm`, have long been there."""

import asyncio
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from bench.harness import alternate, choose, report
from bench.peers.contestants import CONTESTANTS, FLOOR, Contestant, find_contestant
from bench.peers.kills import measure_kills
from bench.peers.processes import fill, running, to_order
from bench.peers.servers import Server, find_redis, run_servers
from bench.peers.work import Order
from bench.worker_process import Measured

DELAY = (10.0, 15.0)
MODES = ("kills", "warm")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rounds:
    """How often and how long each contestant is measured; with `cached`, its worker keeps so many workflows."""

    first: int = -1  # a first round that is not like the later ones is not counted
    count: int = 5
    warmup: float = 8.0
    seconds: float = 12.0
    cached: int = 0


WARM = _Rounds(first=0, count=3, warmup=75.0, seconds=20.0, cached=4000)
"""Long enough for a worker to have all packs in its cache, which has room for twice as many."""


async def main(arguments: list[str]) -> None:
    """Measure all contestants, or those that are named, also `warm`; with `kills` first, kill them."""
    named = [argument for argument in arguments if argument not in MODES]
    modes = set(arguments).intersection(MODES)
    takers = CONTESTANTS if "kills" in modes else [*CONTESTANTS, FLOOR]
    if "warm" in modes:
        takers = [one for one in takers if one.is_for_many]

    known = [one.name for one in takers]
    choose(named, [*known, *MODES], "contestant")
    contestants = [find_contestant(name) for name in named] if named else takers

    async with run_servers() as servers:
        if "kills" in modes:
            await measure_kills(servers, contestants)
        else:
            rounds = WARM if "warm" in modes else _Rounds()
            await _measure_all(servers, contestants, rounds)


async def _measure_all(servers: Mapping[str, Server], contestants: list[Contestant], rounds: _Rounds) -> None:
    seen: dict[str, list[Measured]] = {contestant.name: [] for contestant in contestants}
    orders = {
        one.name: replace(
            to_order(servers, one, one.count, DELAY), warmup=rounds.warmup, seconds=rounds.seconds, cached=rounds.cached
        )
        for one in contestants
    }
    for order in orders.values():
        await fill(order)

    for number in range(rounds.first, rounds.count):
        for name, order in alternate(orders, number).items():
            measured = await _measure(order)
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
    note = f"one worker process each, {rounds.count} rounds of {rounds.seconds:.0f} s by turns; {_describe_versions()}"
    case = "warm" if rounds.cached else ""
    report("peers", rows, note=note, case=case)


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
