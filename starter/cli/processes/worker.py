"""The command `worker`."""

import argparse

from shared.settings import Settings
from starter.cli.arguments import Commands, count, number, port
from worker.options import add_worker_options


def add(commands: Commands) -> None:
    parser = commands.add("worker", _run, "run handlers until SIGTERM or Ctrl-C, then drain", prints_data=False)
    add_worker_options(parser, count=count, seconds=number, port=port)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from shared.telemetry.logs import set_up_logs
    from worker.main import read_options
    from worker.processes import serve

    options = read_options(args, settings)
    set_up_logs(settings)
    return serve(options)
