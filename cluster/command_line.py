"""How the programs of this folder begin and end: what went wrong is one sentence, and an exit code."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import click

from shared.errors import DormiceError
from shared.exit import INTERRUPTED, PIPE_CLOSED, code_of, find_stop_signals
from starter.local.terminal import echo_err
from worker.options import parse


def run_command(command: click.Command, name: str, words: Sequence[str], at_interrupt: str = "") -> int:
    """Run `./run NAME` with these words and give its exit code; `at_interrupt` is told when a person ends it."""
    try:
        return parse(command, f"./run {name}", words)
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        if at_interrupt:
            echo_err(at_interrupt)
        return INTERRUPTED
    except DormiceError as exc:
        echo_err(f"{name}: {exc}")
        return code_of(exc)


def run_process(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run `main` with the words of this process, end it by SIGTERM as by Ctrl-C, and leave with the exit code."""
    for number in find_stop_signals():
        signal.signal(number, signal.default_int_handler)

    code = main(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
