"""The command line: reads settings and arguments, runs one command, and exits with its code."""

import asyncio
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from shared.errors import DormiceError
from shared.exit import DEFECT, INTERRUPTED, PIPE_CLOSED, WRONG, code_of
from shared.settings import add_handler_folder, find_unknown_variables, load_settings
from starter.cli.interruption import run_interruptibly
from starter.cli.program import COMPLETE_VARIABLE, program
from starter.local.disk import is_full_error
from starter.local.terminal import echo_err
from worker.options import parse

WARNED_VARIABLE = "_DORMICE_WARNED"
"""Holds the names of variables that a parent process has already warned of."""


def main() -> NoReturn:
    """Run the command of this process and leave with its exit code.

    The process ends without the interpreter's own exit, at which a short-lived Temporal client may crash:
    https://github.com/temporalio/sdk-python/issues/300
    """
    _prepare_streams()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as exc:
        code = _explain(exc)

    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; every error becomes one sentence on standard error."""
    is_verbose = False
    try:
        if COMPLETE_VARIABLE in os.environ:
            program.main(prog_name="dormice")  # answers the shell, and exits
        typed = parse(program, "dormice", arguments)
        if isinstance(typed, int):
            return typed

        args = typed.args
        is_verbose = args.verbose
        settings = load_settings(dict(args.set), os.environ, args.config)
        add_handler_folder(args.config)
        _warn_of_unknown_variables()
        code = typed.run(args, settings)
        return run_interruptibly(code) if asyncio.iscoroutine(code) else code
    except KeyboardInterrupt:
        echo_err("interrupted")
        return INTERRUPTED
    except Exception as exc:  # noqa: BLE001 — printed, and with --verbose in full
        return _explain(exc, is_verbose=is_verbose)


def _warn_of_unknown_variables() -> None:
    """Warn of variables that look like a setting and are none; child processes do not repeat the warning."""
    warned = os.environ.get(WARNED_VARIABLE, "").split(",")
    for name, like in find_unknown_variables(os.environ):
        if name not in warned:
            hint = f"did you mean {like}?" if like else "'dormice settings' lists them all"
            echo_err(f"dormice: warning: {name} is set in the environment, but there is no such setting; {hint}")
            warned.append(name)
            os.environ[WARNED_VARIABLE] = ",".join(filter(None, warned))


def _explain(exc: Exception, *, is_verbose: bool = False) -> int:
    if isinstance(exc, BrokenPipeError):
        return PIPE_CLOSED

    if isinstance(exc, DormiceError):
        code = code_of(exc)
        sentence = str(exc)
    elif isinstance(exc, OSError):
        where = f"{exc.filename}: " if exc.filename else ""
        remedy = "free some space" if is_full_error(exc) else "correct that"
        code = WRONG
        sentence = f"{where}{exc.strerror or exc}; {remedy} and try again"
    else:
        code = DEFECT
        what = f"{type(exc).__name__}: {exc}"
        sentence = f"a defect of dormice itself ({what}); run it again with --verbose to see where"

    echo_err(f"dormice: {' '.join(sentence.split())}")
    if is_verbose:
        echo_err("".join(traceback.format_exception(exc)).rstrip())
    return code


def _prepare_streams() -> None:
    """Let output accept any text in any terminal encoding, and replace streams that the parent process has closed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("r+"))  # noqa: SIM115 — open for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
