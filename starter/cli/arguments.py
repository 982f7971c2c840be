"""Arguments: the parser of the command line, and the readers of what is typed on it."""

import argparse
import contextlib
import difflib
import functools
import math
import re
from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.json_value import parse_json
from shared.messages.timespan import parse_duration, parse_moment
from shared.settings import Settings
from starter.steering.selection import STATES, Selection

if TYPE_CHECKING:
    from starter.files.mapping import RowMapping
    from starter.records.mapping import FormatOptions

HELP_WIDTH = 100
LIKENESS_MIN = 0.7
"""How alike a word and a known one are, from 0 to 1, before the known one is suggested."""

CHOICES_MAX = 10
"""Of more choices an error names only the one that is like what was typed."""

SUGGESTED_MAX = 3
"""So many options at most are suggested for an unknown one."""

FIELD_REFS = ("lane", "scheduled-at", "delay", "expires-at", "priority", "tenant", "payload")
"""Fields of an envelope, or the delay until it is due, that an option --FIELD-from can find elsewhere in a record."""

Value = TypeVar("Value")
Run = Callable[[argparse.Namespace, Settings], int | Coroutine[Any, Any, int]]
"""A command: gives its exit code, or a coroutine that does, which Ctrl-C interrupts."""


class CommandParser(argparse.ArgumentParser):
    """A parser that raises its complaints as one sentence instead of ending the process.

    With a `default` it has sub-commands, and is that one where none is named: `gates` is `gates list`.
    """

    default = ""
    subcommands: Collection[str] = ()

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", functools.partial(argparse.RawDescriptionHelpFormatter, width=HELP_WIDTH))
        super().__init__(allow_abbrev=False, **options)
        # makes "-1d" a value, which its option's reader refuses with a sentence; argparse accepts "-1" only
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def error(self, message: str) -> NoReturn:
        """Raise the complaint."""
        message = re.sub(r"ignored explicit argument (.*)", r"takes no value, but got \1", message)
        raise InvalidSetting(f"{' '.join(message.split())}; '{self.prog} --help' shows the usage")

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] — argparse has three signatures for it
        self, args: Any = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse as argparse does, but refuse what is unknown here, where its command and options are known."""
        if args and args[0] == "help" and self.subcommands:  # as git has it
            args = [*args[1:], "--help"]
        if self.default and self._means_default(args):
            args = [self.default, *args]

        parsed, unknown = super().parse_known_args(args, namespace)
        for option in (word.partition("=")[0] for word in unknown if word.startswith("--")):
            if like := self._find_options_like(option):
                self.error(f"unrecognized arguments: {option}, did you mean {' or '.join(map(repr, like))}?")

        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def _means_default(self, words: Sequence[str]) -> bool:
        """Return whether only options are given, and none asks for help."""
        is_option = not words or words[0].startswith("-")
        return is_option and not {"-h", "--help", *self.subcommands}.intersection(words)

    def _find_options_like(self, option: str) -> list[str]:
        """Find the option that is written like an unknown one, or else those that share a word with it."""
        known = {
            name.lstrip("-"): action.option_strings[0]  # an alias is not suggested beside its option
            for name, action in self._option_string_actions.items()
            if name.startswith("--")
        }
        if like := difflib.get_close_matches(option.lstrip("-"), known, 1, LIKENESS_MIN):
            return [known[like[0]]]

        words = set(option.lstrip("-").split("-"))
        sharing = [each for name, each in known.items() if words.intersection(name.split("-"))]
        return list(dict.fromkeys(sharing))[:SUGGESTED_MAX]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as exc:
            choices = [*map(str, action.choices or ())]
            if like := difflib.get_close_matches(str(value), choices, 1, LIKENESS_MIN):
                exc.message = exc.message.replace(" (choose", f", did you mean {like[0]!r}? (choose", 1)
            if len(choices) > CHOICES_MAX:  # the help lists them, with what each is for
                exc.message = exc.message.partition(" (choose")[0]
            raise


class _Subcommands(
    # private, but the only hook for names of two words
    argparse._SubParsersAction  # noqa: SLF001 # pyright: ignore[reportPrivateUsage, reportMissingTypeArgument]
):
    """Sub-commands whose names may have two words: `bridge status` beside `bridge`, which has arguments of its own."""

    choices: Any

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        if (both := " ".join(values[:2])) in self.choices:
            values = [both, *values[2:]]
        before: list[Any] = getattr(namespace, "set", [])
        namespace.set = list[Any]()
        super().__call__(parser, namespace, values, option_string)
        namespace.set = [*before, *namespace.set]  # counts both before and after a command's name

    def split_two_words(self) -> None:
        """Make the second word of `bridge status` an argument of `bridge`, for a shell, which sees two words."""
        for shown in self._get_subactions():
            first, _, second = shown.dest.partition(" ")
            if second:
                shown.help = argparse.SUPPRESS
                argument = self.choices[first]._get_positional_actions()[0]  # noqa: SLF001 — as shtab reads them
                argument.choices = (*(argument.choices or ()), second)


class Commands:
    """The sub-commands of a parser."""

    def __init__(self, parser: CommandParser, leaves: "list[CommandParser] | None" = None) -> None:
        self.parser = parser
        self.leaves: list[CommandParser] = [] if leaves is None else leaves
        """Every command that can be run, in the order it was added."""
        self.groups: dict[str, Commands] = {}
        """The commands that have sub-commands of their own, by name: other modules may add to them."""
        # typeshed forgets the class that is given
        self.subparsers: Any = parser.add_subparsers(action=_Subcommands, metavar="COMMAND", required=True)
        parser.subcommands = self.subparsers.choices

    def add(
        self, name: str, run: Run, purpose: str, epilog: str | None = None, *, prints_data: bool = True
    ) -> CommandParser:
        """Add a command."""
        parser = self._add(name, purpose)
        parser.epilog = epilog
        parser.set_defaults(run=run)
        self.leaves.append(parser)
        if prints_data:
            parser.add_argument("--json", action="store_true", help="print data as JSON, on standard output alone")

        return parser

    def add_group(self, name: str, purpose: str, *, default: str = "") -> "Commands":
        """Add a command that has sub-commands of its own, and does what `default` does where none is named."""
        parser = self._add(name, purpose)
        if default:
            parser.default = default
            parser.epilog = f"'dormice {name}' alone does what 'dormice {name} {default}' does, with its options."
        self.groups[name] = Commands(parser, self.leaves)
        return self.groups[name]

    def _add(self, name: str, purpose: str) -> CommandParser:
        parser = self.subparsers.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
        add_settings(parser)
        return parser


def add_settings(parser: CommandParser) -> None:
    add = functools.partial(parser.add_argument_group("settings").add_argument, default=argparse.SUPPRESS)
    add("--config", metavar="FILE", type=Path, help="read settings from a TOML file (dormice.toml when it exists)")
    set_help = "change a setting for this run; may be repeated; 'dormice settings' lists them"
    add("--set", metavar="NAME=VALUE", action="append", type=assignment, help=set_help)
    add("--verbose", "-v", action="store_true", help="show where an error comes from")


def add_filter(parser: CommandParser, *, has_moment: bool = True) -> None:
    add = parser.add_argument_group("filter").add_argument
    add("--kind", help="messages of this kind")
    add("--lane", choices=list(LANES), help="messages on this lane")
    add("--state", choices=STATES, help="messages in this state; those that are alive when left out")
    if has_moment:
        add("--due-before", **MOMENT, help="messages due before then")
    else:
        parser.set_defaults(due_before=None)


def read_filter(args: argparse.Namespace) -> Selection:
    return Selection(kind=args.kind, lane=args.lane, state=args.state, due_before=args.due_before)


def add_field_refs(group: Any) -> None:
    for name in FIELD_REFS:
        group.add_argument(f"--{name}-from", metavar="PART", help=f"where the {name.replace('-', '_')} is")
    # the units of starter.records.moments, which takes long to import
    unit_help = "unit of the delay, which counts from the record's timestamp (milliseconds)"
    group.add_argument("--delay-unit", choices=("milliseconds", "seconds"), help=unit_help)


def read_format(args: argparse.Namespace) -> "FormatOptions":
    """Read how records become envelopes, from the options of `add_field_refs`, --kind and --id-from."""
    from starter.records.mapping import FormatOptions

    return FormatOptions.read(kind=args.kind, **read_mapping(args))


def read_mapping(args: argparse.Namespace) -> dict[str, str | None]:
    """Give the options of `add_field_refs`, and --id-from, as they were typed."""
    names = [f"{name.replace('-', '_')}_from" for name in ("id", *FIELD_REFS)]
    return {name: getattr(args, name) for name in (*names, "delay_unit")}


def add_row_mapping(parser: CommandParser) -> None:
    """Add the options that say which parts of a row are which fields of its message."""
    mapping = parser.add_argument_group("mapping")
    mapping.add_argument("--kind", help="kind of rows that name none, or where it is")
    mapping.add_argument("--id-from", metavar="PART", help="where a message's id is; makes rows any JSON")
    add_field_refs(mapping)
    mapping.add_argument("--lane", choices=list(LANES), help="lane of rows that name none; else their handler's own")

    zone_help = "time zone of moments without an offset, for example America/New_York"
    mapping.add_argument("--zone", help=zone_help)
    mapping.add_argument("--at", metavar="HH:MM", help="time of day, in that zone, of moments that are days alone")

    table = parser.add_argument_group("columns of CSV")
    columns_help = "names of the columns; then the first line is a row, unless --header is given too"
    table.add_argument("--columns", metavar="NAME,NAME", help=columns_help)
    first_line = table.add_mutually_exclusive_group()
    set_header = functools.partial(first_line.add_argument, dest="has_header", action="store_const")
    set_header("--header", const=True, help="the first line is a header, whatever it looks like")
    set_header("--no-header", const=False, help="the first line is a row; columns without names are 1, 2, 3 and so on")
    table.add_argument("--fill-rows", action="store_true", help="a row with too few cells ends in empty ones")


def read_row_mapping(args: argparse.Namespace) -> "RowMapping":
    """Read the options of `add_row_mapping`; raises InvalidSetting."""
    from starter.files.mapping import RowMapping
    from starter.files.table_options import TableOptions
    from starter.records.local_moments import LocalMoments

    table = TableOptions.read(args.columns, args.has_header, fills_rows=args.fill_rows)
    return RowMapping(read_format(args), args.lane, table, LocalMoments.read(args.zone, args.at))


def read_name(text: str) -> tuple[str, str]:
    """Read the KIND:ID of a message; raises InvalidSetting."""
    kind, _, message_id = text.partition(":")
    if not kind or not message_id:
        raise InvalidSetting(f"KIND:ID is {text!r}; write KIND:ID, for example feed:42")
    return kind, message_id


def read_seconds(name: str, seconds: float) -> timedelta:
    """Read the seconds that an option has; raises InvalidSetting."""
    if not 0 < seconds <= 3600:
        raise InvalidSetting(f"--{name}: is {seconds:g}; give seconds above 0, at most 3600")
    return timedelta(seconds=seconds)


def read_pair(text: str, example: str) -> tuple[str, str]:
    """Read NAME=VALUE; raises ValueError with half a sentence."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"is {text!r}; write NAME=VALUE, for example {example}")
    return name, value


def _reader(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """Adapt a reader to argparse: its ValueError holds half a sentence, which argparse completes."""

    def read_argument(text: str) -> Value:
        try:
            return read(text)
        except ValueError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return read_argument


def _whole_number(minimum: int, maximum: float, wanted: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or not minimum <= int(text) <= maximum:
            raise ValueError(f"is {text!r}; give {wanted}")
        return int(text)

    return _reader(read)


def _read_assignment(text: str) -> tuple[str, str]:
    name, value = read_pair(text, "in_flight=16")
    return name.strip().lower().replace("-", "_").removeprefix("dormice_"), value


def _read_payload(text: str) -> Any:
    if text == "@":
        raise ValueError("names no file behind the @; write @FILE")
    try:
        raw = Path(text[1:]).read_bytes() if text.startswith("@") else text
    except OSError as exc:
        raise ValueError(f"names file {text[1:]!r}, which can't be read ({exc.strerror})") from exc
    try:
        return parse_json(raw)
    except ValueError as exc:
        raise ValueError(f"{exc}; write JSON, in quotes for the shell, or @FILE") from exc


def _read_number(text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(found := float(text)):
            return found
    raise ValueError(f"is {text!r}; give a number, for example 30 or 0.5")


assignment = _reader(_read_assignment)
payload = _reader(_read_payload)
number = _reader(_read_number)
priority = _whole_number(1, 5, "a whole number from 1 (first) to 5 (last)")
port = _whole_number(0, 65535, "a port from 0 to 65535")
count = _whole_number(1, math.inf, "a whole number of at least 1")
offset = _whole_number(0, math.inf, "a whole number, 0 or more")
moment: Callable[[str], datetime] = _reader(parse_moment)
duration: Callable[[str], timedelta] = _reader(parse_duration)

# what many options have in common
MOMENT: dict[str, Any] = {"metavar": "MOMENT", "type": moment}
DURATION: dict[str, Any] = {"metavar": "DURATION", "type": duration}
COUNT: dict[str, Any] = {"metavar": "N", "type": count}
OFFSET: dict[str, Any] = {"metavar": "N", "type": offset}
SECONDS: dict[str, Any] = {"metavar": "S", "type": number}
PAYLOAD: dict[str, Any] = {"metavar": "JSON", "type": payload}
PRIORITY: dict[str, Any] = {"metavar": "N", "type": priority}
REPEATED: dict[str, Any] = {"action": "append", "default": []}
