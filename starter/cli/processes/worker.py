"""The command `worker`."""

import argparse

from shared.lanes import LANES
from shared.settings import Settings
from starter.cli.arguments import COUNT, SECONDS, Commands, add_health


def add(commands: Commands) -> None:
    parser = commands.add("worker", _run, "run handlers until SIGTERM or Ctrl-C, then drain", prints_data=False)
    add = parser.add_argument
    add("--lane", action="append", choices=list(LANES), help="lane to serve; may be repeated; all when left out")
    add("--processes", **COUNT, help="processes; one per core, as far as quota and memory go, when left out")
    add("--drain-seconds", **SECONDS, default=30.0, help="what handlers at work get to finish (30)")
    add_health(parser, "/healthz and /readyz")


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from shared.telemetry.logs import set_up_logs
    from worker.main import read_options
    from worker.processes import serve

    options = read_options(args, settings)
    set_up_logs(settings)
    return serve(options)
