"""The commands about idle capacity: `idle status`, `on`, `off` and `limits`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import CommandParser, Commands
from starter.cli.exit_codes import FINE
from starter.cli.interruption import run_interruptibly
from starter.screen import echo_err, print_json, print_table

if TYPE_CHECKING:
    from starter.steering.keepers import IdleControl, IdleStatus

Answer = TypeVar("Answer")

STATUS_EPILOG = """\
Counts are of messages that have a workflow of their own and of packs, each of which runs up to --pack-messages of \
its own
at once; a worker that is killed may take the counts of two seconds with it."""


def add_idle(commands: Commands) -> None:
    """Add the group."""
    group = commands.add_group("idle", "spend idle capacity on messages that are not due yet, the earliest due first")
    parser = group.add("status", run_status, "tell what lanes do with their idle capacity")
    parser.epilog = STATUS_EPILOG
    _add_lane(parser)
    for word, purpose in (
        ("on", "run messages ahead of time where workers have nothing to do, none before its earliest moment"),
        ("off", "run nothing ahead of time any more"),
    ):
        _add_lane(group.add(word, functools.partial(_run_switch, word), purpose, prints_data=False))
    parser = group.add(
        "limits", run_limits, "bound what is run ahead of time; limits not given stay", prints_data=False
    )
    _add_lane(parser)
    add = parser.add_argument
    add(
        "--reserve",
        metavar="SHARE",
        type=arguments.number,
        help="slots that stay free for what falls due, 0 to 0.95 (0.25)",
    )
    add(
        "--quiet", metavar="DURATION", type=arguments.duration, help="a lane is idle after so long without a queue (3s)"
    )
    add("--pack-messages", metavar="N", type=arguments.count, help="messages that one pack runs ahead at once (50)")
    add(
        "--reach",
        metavar="DURATION",
        type=arguments.duration,
        help="a pack runs none ahead that is due so much later than the lane's first (15m)",
    )


def _add_lane(parser: CommandParser) -> None:
    parser.add_argument("--lane", action="append", choices=list(LANES), help="lane; may be repeated; all when left out")


def run_status(args: argparse.Namespace, settings: Settings) -> int:
    """Print a line for each lane."""

    async def ask(idle: "IdleControl") -> "list[IdleStatus]":
        return [await idle.status(lane) for lane in _lanes_of(args)]

    found = run_interruptibly(_with_idle(settings, ask))
    if args.json:
        for status in found:
            print_json(_to_line(status))
    else:
        print_table(("LANE", "", "DOING", "MESSAGES", "PACKS", "EARLY", "LIMITS"), map(_to_cells, found))
    return FINE


def _run_switch(word: str, args: argparse.Namespace, settings: Settings) -> int:
    async def switch(idle: "IdleControl") -> None:
        for lane in _lanes_of(args):
            await idle.switch(lane, is_on=word == "on")

    run_interruptibly(_with_idle(settings, switch))
    echo_err(f"idle capacity of {', '.join(_lanes_of(args))}: {word}")
    return FINE


def run_limits(args: argparse.Namespace, settings: Settings) -> int:
    """Send the limits that were given."""
    given: dict[str, Any] = {
        "reserve": args.reserve,
        "quiet_seconds": args.quiet and args.quiet.total_seconds(),
        "pack_messages": args.pack_messages,
        "reach_seconds": args.reach and args.reach.total_seconds(),
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise InvalidSetting("idle limits: none is given; give for example --reserve 0.5")

    async def limit(idle: "IdleControl") -> None:
        for lane in _lanes_of(args):
            await idle.limit(lane, changes)

    try:
        run_interruptibly(_with_idle(settings, limit))
    except ValueError as exc:
        name, _, problem = str(exc).partition(":")
        raise InvalidSetting(f"--{name.removesuffix('_seconds').replace('_', '-')}:{problem}") from exc
    text = ", ".join(f"{name} {value:g}" for name, value in changes.items())
    echo_err(f"idle capacity of {', '.join(_lanes_of(args))}: {text}")
    return FINE


async def _with_idle(settings: Settings, act: "Callable[[IdleControl], Awaitable[Answer]]") -> Answer:
    from starter.cli.connection import open_client
    from starter.steering.keepers import IdleControl

    return await act(IdleControl(await open_client(settings), settings))


def _lanes_of(args: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(args.lane or LANES))


def _to_line(status: "IdleStatus") -> dict[str, Any]:
    return {
        "lane": status.lane,
        "is_on": status.is_on,
        "doing": status.doing,
        "pulled": status.pulled.dump() | {"mean_early_seconds": round(status.pulled.mean_early_seconds, 3)},
        "limits": status.limits.dump(),
    }


def _to_cells(status: "IdleStatus") -> tuple[str, ...]:
    limits, pulled = status.limits, status.pulled
    texts = {
        "reserve": f"{limits.reserve:g}",
        "quiet": f"{limits.quiet_seconds:g}s",
        "pack-messages": f"{limits.pack_messages}",
        "reach": format_seconds(limits.reach_seconds),
    }
    return (
        status.lane,
        "on" if status.is_on else "off",
        status.doing or "-",
        f"{pulled.messages:,}",
        f"{pulled.packs:,}",
        format_seconds(pulled.mean_early_seconds) if pulled.messages + pulled.packs else "-",
        ", ".join(f"{name} {value}" for name, value in texts.items()),
    )
