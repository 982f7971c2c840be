"""Arguments: what commands are made of, the readers of what is typed, and the options that several commands have."""

import contextlib
import functools
import math
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
from click import Choice
from click.shell_completion import CompletionItem

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.json_value import parse_json
from shared.messages.timespan import parse_duration, parse_moment
from shared.settings import Settings
from starter.steering.selection import STATES, Selection
from worker import options

if TYPE_CHECKING:
    from starter.files.mapping import RowMapping
    from starter.records.mapping import FormatOptions

FIELD_REFS = ("lane", "scheduled-at", "delay", "expires-at", "priority", "tenant", "payload")
"""Fields of an envelope, or the delay until it is due, that an option --FIELD-from can find elsewhere in a record."""

Arguments = SimpleNamespace
"""What was typed: an attribute for each argument and option."""

Run = Callable[[Arguments, Settings], int | Coroutine[Any, Any, int]]
"""A command: gives its exit code, or a coroutine that does, which Ctrl-C interrupts."""

Decorator = Callable[[Any], Any]
"""Gives a command an option, or several."""


class Invocation(NamedTuple):
    """A command as it was typed, which runs once its settings are there."""

    run: Run
    args: Arguments


class Option(click.Option):
    """An option that help shows under the title of its section."""

    def __init__(self, *args: Any, section: str = "Options", **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.section = section


def section(title: str) -> Callable[..., Decorator]:
    """Make what makes the options of a section."""
    return functools.partial(click.option, cls=Option, section=title)


def join(*decorators: Decorator) -> Decorator:
    """Make one decorator of options that several commands have."""
    return lambda run: functools.reduce(lambda decorated, add: add(decorated), reversed(decorators), run)


def read_pair(text: str, example: str) -> tuple[str, str]:
    """Read NAME=VALUE; raises ValueError with half a sentence."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"is {text!r}; write NAME=VALUE, for example {example}")
    return name, value


def read_assignment(text: str) -> tuple[str, str]:
    """Read the NAME=VALUE of a setting, however its name is written; raises ValueError with half a sentence."""
    name, value = read_pair(text, "in_flight=16")
    return name.strip().lower().replace("-", "_").removeprefix("dormice_"), value


def read_payload(text: str) -> Any:
    """Read JSON, or the file that @FILE names; raises ValueError with half a sentence."""
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


def read_number(text: str) -> float:
    """Read a finite number; raises ValueError with half a sentence."""
    with contextlib.suppress(ValueError):
        if math.isfinite(found := float(text)):
            return found
    raise ValueError(f"is {text!r}; give a number, for example 30 or 0.5")


def complete_folder(
    ctx: click.Context,  # noqa: ARG001 — click gives all three
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Leave it to the shell, which knows its folders."""
    return [CompletionItem(incomplete, type="dir")]


# what many options have in common; defaults of moments and durations are texts, because click reads those as well
MOMENT: dict[str, Any] = {"metavar": "MOMENT", "type": parse_moment}
DURATION: dict[str, Any] = {"metavar": "DURATION", "type": parse_duration}
OFFSET: dict[str, Any] = {"metavar": "N", "type": options.whole_number(0, math.inf, "a whole number, 0 or more")}
COUNT = options.COUNT
PORT = options.PORT
SECONDS: dict[str, Any] = {"metavar": "S", "type": read_number}
LANE: dict[str, Any] = {"type": Choice([*LANES])}
PAYLOAD: dict[str, Any] = {"metavar": "JSON", "type": read_payload}
PRIORITY: dict[str, Any] = {
    "metavar": "N",
    "type": options.whole_number(1, 5, "a whole number from 1 (first) to 5 (last)"),
}
FILE: dict[str, Any] = {"metavar": "FILE", "type": click.Path(dir_okay=False, path_type=Path)}
# what is wrong with a folder is told by whoever uses it, with the next step
FOLDER: dict[str, Any] = {
    "metavar": "FOLDER",
    "type": click.Path(path_type=Path),
    "shell_complete": complete_folder,
}

JSON = click.Option(["--json"], is_flag=True, help="print data as JSON, on standard output alone")

CONFIG_HELP = "read settings from a TOML file (dormice.toml when it exists)"
SET_HELP = "change a setting for this run; may be repeated; 'dormice settings' lists them"
SET: dict[str, Any] = {"metavar": "NAME=VALUE", "multiple": True, "type": read_assignment}
SETTINGS = (
    Option(["--config"], section="Settings", **FILE, help=CONFIG_HELP),
    Option(["--set"], section="Settings", **SET, help=SET_HELP),
    Option(["--verbose", "-v"], section="Settings", is_flag=True, help="show where an error comes from"),
)
"""They count before and behind the name of a command."""


class Command(click.Command):
    """A command whose callback is a `Run`; invoked, it gives its `Invocation`, because settings are not there yet."""

    def __init__(self, *args: Any, prints_data: bool = True, **attributes: Any) -> None:
        data = [JSON] if prints_data else []
        attributes["params"] = [*attributes["params"], *data, *SETTINGS]
        super().__init__(*args, short_help=attributes["help"], **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed; each error knows whose help shows the usage."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as exc:
            exc.ctx = ctx
            raise

    def invoke(self, ctx: click.Context) -> Invocation:
        """Give the command with what was typed, before its name or behind it."""
        levels = [ctx]
        while (parent := levels[0].parent) is not None:
            levels.insert(0, parent)

        args = Arguments(**ctx.params)
        args.set = [pair for level in levels for pair in level.params["set"]]
        args.config = next((level.params["config"] for level in levels[::-1] if level.params["config"]), None)
        args.verbose = any(level.params["verbose"] for level in levels)
        return Invocation(cast("Run", self.callback), args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each section under its title."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None and isinstance(each, click.Option):
                sections.setdefault(getattr(each, "section", "Options"), []).append(record)

        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(click.Group):
    """A command that has sub-commands of its own, and does what `default` does where none is named.

    Its names may have two words: `bridge status` stands beside `bridge`, which has arguments of its own.
    """

    command_class = Command

    def __init__(self, name: str, purpose: str, default: str = "", **attributes: Any) -> None:
        super().__init__(name, help=purpose, short_help=purpose, params=[*SETTINGS], **attributes)
        self.no_args_is_help = False
        self.default = default
        if default:
            self.epilog = f"'dormice {name}' alone does what 'dormice {name} {default}' does, with its options."

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 — as click calls it
        """Give the names in the order in which they were added."""
        return [*self.commands]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `help COMMAND` for `COMMAND --help`, as git does, and options alone for those of the default."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif self.default and not ctx.resilient_parsing and self._means_default(args):
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _means_default(self, words: Sequence[str]) -> bool:
        """Return whether only options are given, and none asks for help."""
        is_option = not words or words[0].startswith("-")
        return is_option and not {"-h", "--help", *self.commands}.intersection(words)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word or two name."""
        both = " ".join(args[:2])
        if len(args) > 1 and self.get_command(ctx, both) is not None:
            args = [both, *args[2:]]
        return super().resolve_command(ctx, args)


def complete_second_word(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete `status` behind `bridge`, in the place of its first argument."""
    known = cast("Group", ctx.find_root().command).commands
    names = [name for name in known if name.startswith(f"{ctx.info_name} {incomplete}")]
    return [name.partition(" ")[2] for name in names]


in_filter = section("Filter")
filter_options = join(
    in_filter("--kind", help="messages of this kind"),
    in_filter("--lane", **LANE, help="messages on this lane"),
    in_filter("--state", type=Choice(STATES), help="messages in this state; those that are alive when left out"),
)
due_before_option = in_filter("--due-before", **MOMENT, help="messages due before then")


def read_filter(args: Arguments) -> Selection:
    """Read `filter_options` and `due_before_option`."""
    return Selection(kind=args.kind, lane=args.lane, state=args.state, due_before=args.due_before)


def field_ref_options(title: str) -> Decorator:
    """Make the options that say where in a record the fields of its message are."""
    add = section(title)
    refs = [add(f"--{name}-from", metavar="PART", help=f"where the {name.replace('-', '_')} is") for name in FIELD_REFS]
    # the units of starter.records.moments, which takes long to import
    units = Choice(("milliseconds", "seconds"))
    unit_help = "unit of the delay, which counts from the record's timestamp (milliseconds)"
    return join(*refs, add("--delay-unit", type=units, help=unit_help))


def read_format(args: Arguments) -> "FormatOptions":
    """Read how records become envelopes, from `field_ref_options`, --kind and --id-from."""
    from starter.records.mapping import FormatOptions

    return FormatOptions.read(kind=args.kind, **read_mapping(args))


def read_mapping(args: Arguments) -> dict[str, str | None]:
    """Give `field_ref_options` and --id-from as they were typed."""
    names = [f"{name.replace('-', '_')}_from" for name in ("id", *FIELD_REFS)]
    return {name: getattr(args, name) for name in (*names, "delay_unit")}


in_mapping = section("Mapping")
in_table = section("Columns of CSV")
row_mapping_options = join(
    in_mapping("--kind", help="kind of rows that name none, or where it is"),
    in_mapping("--id-from", metavar="PART", help="where a message's id is; makes rows any JSON"),
    field_ref_options("Mapping"),
    in_mapping("--lane", **LANE, help="lane of rows that name none; else their handler's own"),
    in_mapping("--zone", help="time zone of moments without an offset, for example America/New_York"),
    in_mapping("--at", metavar="HH:MM", help="time of day, in that zone, of moments that are days alone"),
    in_table(
        "--columns",
        metavar="NAME,NAME",
        help="names of the columns; then the first line is a row, unless --header is given too",
    ),
    in_table(
        "has_header",
        "--header/--no-header",
        default=None,
        help="the first line is a header, whatever it looks like, or is a row; columns without names are 1, 2, 3 …",
    ),
    in_table("--fill-rows", is_flag=True, help="a row with too few cells ends in empty ones"),
)
"""They say which parts of a row are which fields of its message."""


def read_row_mapping(args: Arguments) -> "RowMapping":
    """Read `row_mapping_options`; raises InvalidSetting."""
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
