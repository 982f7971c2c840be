"""How worker processes begin: by `python -m worker` when only a worker is needed, or started by a parent."""

import contextlib
import functools
import logging
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import click

from shared.exit import FINE
from shared.settings import add_handler_folder, load_settings
from shared.telemetry.logs import set_up_logs
from worker.health import CHECK_EVERY, Report, encode_report
from worker.main import StopRequest, WorkerOptions, leave, read_options, run_process, to_exit_code
from worker.options import parse, worker_options
from worker.processes import serve

logger = logging.getLogger(__name__)


@click.command()
@worker_options
def command(**flags: Any) -> int:
    """Serve lanes until SIGTERM, then drain."""
    settings = load_settings(environ=os.environ)
    add_handler_folder()
    set_up_logs(settings)
    return serve(read_options(SimpleNamespace(**flags), settings))


def run_child(descriptor: int) -> NoReturn:
    """Run as one of several processes: read the options from the parent's socket and serve until it closes."""
    parent = socket.socket(fileno=descriptor)
    parent.set_inheritable(False)  # a program that a handler starts must not keep the channel open
    try:
        with parent.makefile("rb") as stream:
            options: WorkerOptions = pickle.load(stream)  # noqa: S301 — from our own parent, over a private socket
    except (EOFError, ConnectionError):
        leave(FINE)  # the parent is gone already

    def run() -> int:
        set_up_logs(options.settings)
        return run_process(options, functools.partial(_follow_parent, parent))

    leave(to_exit_code(run))


def _follow_parent(parent: socket.socket, report: Callable[[], Report], order: StopRequest) -> None:
    """Report readiness on each change and from time to time; when the parent ends for any reason, order to stop."""
    reported: Report | None = None
    reported_at = 0.0

    try:
        parent.settimeout(0.5)
        while True:
            with contextlib.suppress(TimeoutError):
                if not parent.recv(1):
                    break
            current = report()
            now = time.monotonic()
            if current != reported or now - reported_at > CHECK_EVERY.total_seconds():
                parent.sendall(encode_report(current))
                reported = current
                reported_at = now
    except OSError:
        logger.warning("parent process is gone", extra={"action": "parent_gone"})

    order.give()


if __name__ == "__main__":
    leave(to_exit_code(functools.partial(parse, command, "python -m worker", sys.argv[1:])))
