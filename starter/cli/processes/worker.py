"""The command `worker`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse

from shared.lanes import LANES
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import Commands


def add_worker(commands: Commands) -> None:
    """Add `worker`."""
    parser = commands.add("worker", run_worker, "run handlers until SIGTERM or Ctrl-C, then drain", prints_data=False)
    add = parser.add_argument
    add("--lane", action="append", choices=list(LANES), help="lane to serve; may be repeated; all when left out")
    add("--processes", metavar="N", type=arguments.count, help="processes; one per core when left out")
    add(
        "--drain-seconds",
        metavar="S",
        type=arguments.number,
        default=30.0,
        help="what handlers at work get to finish (30)",
    )
    add(
        "--health-port",
        metavar="PORT",
        type=arguments.port,
        help="answer /healthz and /readyz there; 0 takes a free one",
    )
    add("--health-host", metavar="HOST", default="127.0.0.1", help="address for that port (127.0.0.1)")


def run_worker(args: argparse.Namespace, settings: Settings) -> int:
    """Serve the lanes."""
    from shared.telemetry.logs import set_up_logs
    from worker.main import read_options
    from worker.processes import serve

    options = read_options(args, settings)
    set_up_logs(settings)
    return serve(options)
