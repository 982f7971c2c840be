"""How command lines are read, and the options of a worker, for each program that has them."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import click
from click import Choice, option

from shared.errors import InvalidSetting
from shared.lanes import LANES


def whole_number(minimum: int, maximum: float, wanted: str) -> Callable[[str | int], int]:
    """Make a reader, also of defaults; it raises ValueError with half a sentence."""

    def read(value: str | int) -> int:
        text = str(value)
        if not (text.isascii() and text.isdecimal()) or not minimum <= int(text) <= maximum:
            raise ValueError(f"is {text!r}; give {wanted}")
        return int(text)

    return read


COUNT: dict[str, Any] = {"metavar": "N", "type": whole_number(1, math.inf, "a whole number of at least 1")}
PORT: dict[str, Any] = {"metavar": "PORT", "type": whole_number(0, 65535, "a port from 0 to 65535")}


def health_options(pages: str) -> Callable[[Any], Any]:
    """Make the options that say where a process answers `pages`."""
    port = option("--health-port", **PORT, help=f"answer {pages} there; 0 takes a free one")
    host = option("--health-host", metavar="HOST", default="127.0.0.1", help="address for that port (127.0.0.1)")
    return lambda run: port(host(run))


def worker_options(run: Any) -> Any:
    """Add the options of a worker to a command."""
    for each in (
        health_options("/healthz and /readyz"),
        option(
            "--drain-seconds", metavar="S", type=float, default=30.0, help="what handlers at work get to finish (30)"
        ),
        option(
            "--wait-for-server",
            is_flag=True,
            help="keep trying while no server answers or it is not set up: alive, but not ready; else it ends",
        ),
        option("--processes", **COUNT, help="processes; one per core, as far as quota and memory go, when left out"),
        option(
            "--lane", type=Choice([*LANES]), multiple=True, help="lane to serve; may be repeated; all when left out"
        ),
    ):
        run = each(run)
    return run


def parse(command: click.Command, name: str, words: Sequence[str]) -> Any:
    """Give what the callback of a command gives for the words of a command line, or the exit code of its help.

    Raises InvalidSetting for words that are wrong.
    """
    try:
        with command.make_context(name, [*words]) as context:
            return command.invoke(context)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.UsageError as exc:
        where = exc.ctx.command_path if exc.ctx else name
        sentence = " ".join(exc.format_message().split()).rstrip(".")
        joint = " " if sentence.endswith("?") else "; "
        raise InvalidSetting(f"{sentence}{joint}'{where} --help' shows the usage") from exc
