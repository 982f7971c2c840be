"""The program `dormice`: its commands are added by the modules that installed distributions name as entry points."""

from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points

import click

from shared.errors import Misconfigured
from shared.exit import MEANINGS
from starter.cli.arguments import Group

ENTRY_POINT_GROUP = "dormice.commands"
"""Names modules that add commands: as the word that a command begins with, or that word, a dot and something else."""

COMPLETE_VARIABLE = "_DORMICE_COMPLETE"
"""A shell that has a script of `dormice completion` sets it to ask how a word goes on."""

HELP_ORDER = (
    *("init", "dev", "worker", "start", "upsert", "load", "show", "explain", "list", "watch"),
    *("now", "reschedule", "reprioritize", "revise", "pause", "resume", "stop", "parked"),
    *("bridge", "dead-letters", "outbox", "frontier", "repack", "repair", "skip"),
    *("idle", "gates", "forecast", "plan", "rehearse", "doctor", "serve", "codec-server"),
    *("spark", "handlers", "settings", "completion"),
)
"""The first words of commands, in the order in which help shows them; others follow by their names."""

CODES = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
EPILOG = f"""\
\b
exit codes:
{CODES}

The server is chosen as for all of Temporal's tools: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TEMPORAL_PROFILE, …"""


class Program(Group):
    """The commands of all installed distributions; of their modules only those are imported that a word needs."""

    group_class = Group

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names of all commands, in the order of help. Raises Misconfigured if one can't be loaded."""
        points = _find_points(ctx)
        words = dict.fromkeys(map(_first_word, points))
        if ctx.resilient_parsing:  # a shell completes the first word, and knows no names of two
            return [*words]

        _load(points)
        return [name for word in words for name in self.commands if name.partition(" ")[0] == word]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Find a command. Raises NoSuchCommand, and Misconfigured if one with this first word can't be loaded."""
        word = cmd_name.partition(" ")[0]
        points = _find_points(ctx)
        found = [point for point in points if _first_word(point) == word]
        if not found and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(word, possibilities=map(_first_word, points), ctx=ctx)

        _load(found)
        return super().get_command(ctx, cmd_name)


def _find_points(ctx: click.Context) -> list[EntryPoint]:
    """Find the entry points of commands, in the order of help, once for a command line."""
    if ENTRY_POINT_GROUP not in ctx.meta:
        points = sorted(entry_points(group=ENTRY_POINT_GROUP), key=_find_place)
        if not points:
            raise Misconfigured(f"no entry point of {ENTRY_POINT_GROUP} is installed; install dormice anew")
        _check_names(points)
        ctx.meta[ENTRY_POINT_GROUP] = points

    return ctx.meta[ENTRY_POINT_GROUP]


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


def _load(points: Iterable[EntryPoint]) -> None:
    """Import the modules of entry points; each adds its commands to the program."""
    for point in points:
        try:
            point.load()
        except Exception as exc:
            # a distribution's module raises what it likes when it is imported; the command ends with this sentence
            flaw = f"entry point {point.name} = {point.value} can't be loaded ({exc!r})"
            raise Misconfigured(f"{flaw}; install its distribution anew, or uninstall it") from exc


program = Program(
    "dormice",
    "Keeps millions of small messages that are processed, choose their own delay, sleep and come back.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": 100},
)
click.version_option(package_name="dormice", message="%(prog)s %(version)s")(program)


def walk(context: click.Context | None = None) -> Iterator[click.Context]:
    """Give the contexts of the program and of all its commands, which know their whole names, in the order of help."""
    context = context or click.Context(program, info_name="dormice", **program.context_settings)
    yield context
    if isinstance(context.command, Group):
        for name in context.command.list_commands(context):
            yield from walk(click.Context(context.command.commands[name], context, name))
