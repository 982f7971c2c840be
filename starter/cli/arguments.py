"""Arguments: the parser of the command line, and the readers of what is typed on it."""

import argparse
import contextlib
import functools
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.json_value import parse_json
from shared.messages.timespan import parse_duration, parse_moment
from shared.settings import Settings
from starter.steering.selection import STATES, Selection

HELP_WIDTH = 100

Value = TypeVar("Value")
Run = Callable[[argparse.Namespace, Settings], int]


class CommandParser(argparse.ArgumentParser):
    """A parser that raises its complaints as one sentence instead of ending the process."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", functools.partial(argparse.RawDescriptionHelpFormatter, width=HELP_WIDTH))
        super().__init__(allow_abbrev=False, **options)
        # makes "-1d" a value, which its option's reader refuses with a sentence; argparse accepts "-1" only
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def error(self, message: str) -> NoReturn:
        """Raise the complaint."""
        raise InvalidSetting(f"{' '.join(message.split())}; '{self.prog} --help' shows the usage")


class _Subcommands(
    # private, but the only hook for names of two words
    argparse._SubParsersAction  # noqa: SLF001 # pyright: ignore[reportPrivateUsage, reportMissingTypeArgument]
):
    """Sub-commands whose names may have two words: `bridge status` beside `bridge`, which has arguments of its own."""

    choices: Any

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if (both := " ".join(values[:2])) in self.choices:
            values = [both, *values[2:]]
        super().__call__(parser, namespace, values, option_string)


class Commands:
    """The sub-commands of a parser; `level` is their depth."""

    def __init__(self, parser: CommandParser, level: int = 1, leaves: "list[CommandParser] | None" = None) -> None:
        self.leaves: list[CommandParser] = [] if leaves is None else leaves
        """Every command that can be run, in the order it was added."""
        self._level = level
        self._subparsers = parser.add_subparsers(
            action=_Subcommands, metavar="COMMAND", required=True, parser_class=CommandParser
        )

    def add(self, name: str, run: Run, purpose: str, *, prints_data: bool = True) -> CommandParser:
        """Add a command that calls `run`."""
        parser = self._add(name, purpose)
        parser.set_defaults(run=run)
        self.leaves.append(parser)
        if prints_data:
            parser.add_argument("--json", action="store_true", help="print data as JSON, on standard output alone")
        return parser

    def add_group(self, name: str, purpose: str) -> "Commands":
        """Add a command that has sub-commands of its own."""
        return Commands(self._add(name, purpose), self._level + 1, self.leaves)

    def _add(self, name: str, purpose: str) -> CommandParser:
        parser = self._subparsers.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
        add_settings(parser, self._level)
        return parser


def add_settings(parser: CommandParser, level: int) -> None:
    """Add the options of every command; `--set` counts both before and after a sub-command's name."""
    group = parser.add_argument_group("settings")
    add = functools.partial(group.add_argument, default=argparse.SUPPRESS)
    add("--config", metavar="FILE", type=Path, help="read settings from a TOML file (dormice.toml when it exists)")
    add(
        "--set",
        dest=f"set_{level}",
        metavar="NAME=VALUE",
        action="append",
        type=assignment,
        help="change a setting for this run; may be repeated; 'dormice settings' lists them",
    )
    add("--verbose", "-v", action="store_true", help="show where an error comes from")


def collect_settings(args: argparse.Namespace) -> dict[str, str]:
    """Give the values of `--set` at all levels; the last one of a name wins."""
    return {name: value for level in range(3) for name, value in getattr(args, f"set_{level}", [])}


def add_filter(parser: CommandParser) -> None:
    """Add the options that select messages."""
    group = parser.add_argument_group("filter")
    group.add_argument("--kind", help="messages of this kind")
    group.add_argument("--lane", choices=list(LANES), help="messages on this lane")
    group.add_argument("--state", choices=STATES, help="messages in this state; those that are alive when left out")
    group.add_argument("--due-before", metavar="MOMENT", type=moment, help="messages due before then")


def read_filter(args: argparse.Namespace) -> Selection:
    """Make the selection from parsed options."""
    return Selection(kind=args.kind, lane=args.lane, state=args.state, due_before=args.due_before)


def _reader(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """Adapt a reader to argparse: its ValueError holds half a sentence, which argparse completes."""

    def read_argument(text: str) -> Value:
        try:
            return read(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return read_argument


def _read_assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"is {text!r}; write NAME=VALUE, for example in_flight=16")
    return name.strip().lower().replace("-", "_").removeprefix("dormice_"), value


def _read_identity(text: str) -> tuple[str, str]:
    kind, colon, message_id = text.partition(":")
    if not colon or not kind or not message_id:
        raise ValueError(f"is {text!r}; write KIND:ID, for example feed:42")
    return kind, message_id


def _read_payload(text: str) -> Any:
    if text.startswith("@"):
        try:
            raw = Path(text[1:]).read_bytes()
        except OSError as exc:
            raise ValueError(f"names file {text[1:]!r}, which can't be read ({exc.strerror})") from exc
    else:
        raw = text
    try:
        return parse_json(raw)
    except ValueError as exc:
        raise ValueError(f"{exc}; write JSON, in quotes for the shell, or @FILE") from exc


def _read_priority(text: str) -> int:
    if text not in ("1", "2", "3", "4", "5"):
        raise ValueError(f"is {text!r}; give a whole number from 1 (first) to 5 (last)")
    return int(text)


def _read_port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65535:
        raise ValueError(f"is {text!r}; give a port from 0 to 65535")
    return int(text)


def _read_number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    raise ValueError(f"is {text!r}; give a number, for example 30 or 0.5")


def _read_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"is {text!r}; give a whole number of at least 1")
    return int(text)


assignment = _reader(_read_assignment)
identity = _reader(_read_identity)
payload = _reader(_read_payload)
priority = _reader(_read_priority)
port = _reader(_read_port)
count = _reader(_read_count)
number = _reader(_read_number)
moment: Callable[[str], datetime] = _reader(parse_moment)
duration: Callable[[str], timedelta] = _reader(parse_duration)
