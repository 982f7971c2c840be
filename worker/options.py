"""Options of a worker on a command line, for each program that has them, and where any process answers for health."""

import argparse
from collections.abc import Callable

from shared.lanes import LANES


def add_worker_options(
    parser: argparse.ArgumentParser,
    *,
    count: Callable[[str], int] = int,
    seconds: Callable[[str], float] = float,
    port: Callable[[str], int] = int,
) -> None:
    """Add the options of a worker; the readers of their values may be stricter than those of Python."""
    add = parser.add_argument
    add("--lane", action="append", choices=list(LANES), help="lane to serve; may be repeated; all when left out")
    count_help = "processes; one per core, as far as quota and memory go, when left out"
    add("--processes", metavar="N", type=count, help=count_help)
    drain_help = "what handlers at work get to finish (30)"
    add("--drain-seconds", metavar="S", type=seconds, default=30.0, help=drain_help)
    add_health_options(parser, "/healthz and /readyz", port)


def add_health_options(parser: argparse.ArgumentParser, pages: str, port: Callable[[str], int]) -> None:
    """Add the options that say where a process answers `pages`."""
    parser.add_argument("--health-port", metavar="PORT", type=port, help=f"answer {pages} there; 0 takes a free one")
    parser.add_argument("--health-host", metavar="HOST", default="127.0.0.1", help="address for that port (127.0.0.1)")
