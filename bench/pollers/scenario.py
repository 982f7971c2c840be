"""The scenario `pollers`: its parts, who takes part in each with how many messages, and the options that bound it."""

import argparse
import importlib.metadata
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.harness import is_on_cluster, report
from bench.peers.contestants import Contestant, find_contestant
from bench.pollers.bloat import measure_bloat
from bench.pollers.herd import measure_herd
from bench.pollers.lag import FRESH_A_SECOND, measure_lag

MESSAGES = 100_000
SECONDS = 30.0
POLLERS = (1, 4, 16)
HELD = "table"
"""Who is also measured beside a transaction left open."""

PACKAGES = ("procrastinate", "apscheduler", "psycopg", "temporalio")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: what it measures, and which share of the messages each contestant gets, by what it can do."""

    measure: Callable[[Contestant, int, float], AsyncIterator[dict[str, Any]]]
    shares: Mapping[str, float]
    note: str


async def _run_lag(contestant: Contestant, messages: int, seconds: float) -> AsyncIterator[dict[str, Any]]:
    yield await measure_lag(contestant, messages, seconds)


async def _run_bloat(contestant: Contestant, messages: int, seconds: float) -> AsyncIterator[dict[str, Any]]:
    yield await measure_bloat(contestant, messages, seconds)
    if contestant.name == HELD or is_on_cluster:
        yield await measure_bloat(contestant, messages, seconds, is_held=True)


async def _run_herd(contestant: Contestant, messages: int, seconds: float) -> AsyncIterator[dict[str, Any]]:
    for pollers in POLLERS:
        yield await measure_herd(contestant, pollers, messages, seconds)


PARTS = {
    "lag": Part(
        _run_lag,
        {"table": 1.0, "procrastinate": 1.0, "apscheduler": 0.1, "dormice-1000": 1.0},
        f"all due before the worker starts, then {FRESH_A_SECOND} fresh messages a second; what has not run by the end "
        f"counts as late as it is then",
    ),
    "bloat": Part(
        _run_bloat,
        {"table": 1.0, "procrastinate": 0.05, "dormice-1000": 1.0},
        "more due than can run; PostgreSQL's autovacuum as it comes",
    ),
    "herd": Part(
        _run_herd,
        {"table": 0.2, "procrastinate": 0.02, "dormice-1000": 0.2},
        "a process for each poller; idle first, then all messages due in one instant",
    ),
}


async def main(arguments: list[str]) -> None:
    """Run all parts, or those that are named, with all contestants of each, or those that are named."""
    options = _read_options(arguments)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)

    for name in [one for one in PARTS if one in options.names] or PARTS:
        part = PARTS[name]
        named = [one for one in part.shares if one in options.names]
        rows = [
            row
            for one in named or part.shares
            async for row in part.measure(
                find_contestant(one), max(1, round(options.messages * part.shares[one])), options.seconds
            )
        ]
        bounds = f"--messages {options.messages} --seconds {options.seconds:g}"
        report("pollers", rows, note=f"{part.note}; {bounds}; {versions}", case=" ".join([name, *named]))


def _read_options(arguments: list[str]) -> argparse.Namespace:
    known = [*PARTS, *dict.fromkeys(name for part in PARTS.values() for name in part.shares)]
    parser = argparse.ArgumentParser(prog="./run bench pollers", description=main.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"parts or contestants: {', '.join(known)}")
    parser.add_argument(
        "--messages", type=int, default=MESSAGES, help="for the fastest ones; others get a share (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="each measurement at most (%(default)s)")

    options = parser.parse_args(arguments)
    if strange := [name for name in options.names if name not in known]:
        parser.error(f"there is no part or contestant '{strange[0]}'; use any of {', '.join(known)}")
    if options.messages < 1 or not options.seconds > 0:
        parser.error("--messages and --seconds must be above 0")
    return options
