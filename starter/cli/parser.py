"""The parser of the command line: made of the commands that installed distributions name as their entry points."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any, NoReturn

from shared.errors import Misconfigured
from shared.exit import FINE, MEANINGS
from starter.cli.arguments import CommandParser, Commands, add_settings

ENTRY_POINT_GROUP = "dormice.commands"
"""Names modules that add commands: as the word that a command begins with, or that word, a dot and something else."""

HELP_ORDER = (
    *("init", "dev", "worker", "start", "upsert", "load", "show", "explain", "list", "watch"),
    *("now", "reschedule", "reprioritize", "revise", "pause", "resume", "stop", "parked"),
    *("bridge", "dead-letters", "outbox", "frontier", "repack", "repair", "skip"),
    *("idle", "gates", "forecast", "plan", "rehearse", "doctor", "serve", "codec-server"),
    *("spark", "handlers", "settings", "completion"),
)
"""The first words of commands, in the order in which help shows them; others follow by their names."""


def build_parser(word: str = "") -> tuple[CommandParser, Commands]:
    """Make the parser with the commands that begin with a word, or with all where none does.

    Only their modules are imported. Raises Misconfigured for commands that can't be loaded.
    """
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
    parser = CommandParser(
        prog="dormice",
        description="Keeps millions of small messages that are processed, choose their own delay, sleep and come back.",
        epilog=f"exit codes:\n{codes}\n\nThe server is chosen as for all of Temporal's tools: TEMPORAL_ADDRESS, "
        "TEMPORAL_NAMESPACE, TEMPORAL_PROFILE, …",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    parser.set_defaults(config=None, verbose=False)
    add_settings(parser)
    commands = Commands(parser)

    for module in _load(_choose(word)):
        module.add(commands)

    return parser, commands


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        sys.stdout.write(f"dormice {version('dormice')}\n")
        parser.exit(FINE)


def _choose(word: str) -> list[EntryPoint]:
    """Give the entry points of the commands that begin with a word, or all, in the order of help."""
    points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=_find_place)
    if not points:
        raise Misconfigured(f"no entry point of {ENTRY_POINT_GROUP} is installed; install dormice anew")
    _check_names(points)

    return [point for point in points if _first_word(point) == word] or points


def _find_place(point: EntryPoint) -> tuple[int, str]:
    word = _first_word(point)
    place = HELP_ORDER.index(word) if word in HELP_ORDER else len(HELP_ORDER)
    return place, point.name


def _first_word(point: EntryPoint) -> str:
    return point.name.partition(".")[0]


def _check_names(points: Iterable[EntryPoint]) -> None:
    """Raise Misconfigured if two distributions have a command of one name."""
    known: dict[str, str] = {}
    for point in points:
        if known.setdefault(point.name, point.value) != point.value:
            both = f"in {known[point.name]} and in {point.value}"
            raise Misconfigured(f"command {point.name!r} is there twice, {both}; uninstall one of them")


def _load(points: Iterable[EntryPoint]) -> Iterator[Any]:
    """Import the modules of entry points, each once, though one may add several commands."""
    first_points: dict[str, EntryPoint] = {}
    for point in points:
        first_points.setdefault(point.value, point)

    for point in first_points.values():
        try:
            module = point.load()
        except Exception as exc:
            # a distribution's module raises what it likes when it is imported; the command ends with this sentence
            flaw = f"entry point {point.name} = {point.value} can't be loaded ({exc!r})"
            raise Misconfigured(f"{flaw}; install its distribution anew, or uninstall it") from exc
        yield module
