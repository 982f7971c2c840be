"""The commands about idle capacity: `idle status`, `on`, `off` and `limits`."""

import argparse
import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.lanes import LANES
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import COUNT, DURATION, CommandParser, Commands, number
from starter.cli.connection import open_client
from starter.local.terminal import echo_err, print_items, print_json

if TYPE_CHECKING:
    from starter.steering.keepers import IdleControl, IdleStatus

LIMITS = ("reserve", "quiet_seconds", "pack_messages", "reach_seconds")
HEADER = ("LANE", "", "DOING", "MESSAGES", "PACKS", "EARLY", "LIMITS")

STATUS_EPILOG = """\
Counts are of messages that have a workflow of their own and of packs, each of which runs up to --pack-messages of its
own at once; a worker that is killed may take the counts of two seconds with it."""


def add(commands: Commands) -> None:
    purpose = "spend idle capacity on messages that are not due yet, the earliest due first"
    group = commands.add_group("idle", purpose, default="status")
    _add_lane(group.add("status", _run_status, "tell what lanes do with their idle capacity", STATUS_EPILOG))

    for word, purpose in (
        (
            "on",
            "run messages ahead of time where workers have nothing to do, none before its handler allows it",
        ),
        ("off", "run nothing ahead of time any more"),
    ):
        _add_lane(group.add(word, functools.partial(_run_switch, word), purpose))

    purpose = "bound what is run ahead of time; limits not given stay"
    parser = group.add("limits", _run_limits, purpose)
    _add_lane(parser)
    add = parser.add_argument
    add("--reserve", metavar="SHARE", type=number, help="slots that stay free for what falls due, 0 to 0.95 (0.25)")
    add("--quiet", dest="quiet_seconds", **DURATION, help="a lane is idle after so long without a queue (3s)")
    add("--pack-messages", **COUNT, help="messages that one pack runs ahead at once (50)")
    reach_help = "a pack runs none ahead that is due so much later than the lane's first (15m)"
    add("--reach", dest="reach_seconds", **DURATION, help=reach_help)


def _add_lane(parser: CommandParser) -> None:
    parser.add_argument("--lane", action="append", choices=list(LANES), help="lane; may be repeated; all when left out")


async def _run_status(args: argparse.Namespace, settings: Settings) -> int:
    idle = await _open_idle(settings)
    found = [await idle.status(lane) for lane in _lanes_of(args)]
    print_items(found, _to_document, HEADER, _to_cells, is_json=args.json)
    return FINE


async def _run_switch(word: str, args: argparse.Namespace, settings: Settings) -> int:
    idle = await _open_idle(settings)
    for lane in _lanes_of(args):
        await idle.switch(lane, is_on=word == "on")
        if args.json:
            print_json({"lane": lane, "is_on": word == "on"})
    echo_err(f"idle capacity of {', '.join(_lanes_of(args))}: {word}")
    return FINE


async def _run_limits(args: argparse.Namespace, settings: Settings) -> int:
    given = {name: value for name in LIMITS if (value := getattr(args, name)) is not None}
    changes = {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in given.items()}
    if not changes:
        raise InvalidSetting("idle limits: none is given; give for example --reserve 0.5")

    idle = await _open_idle(settings)
    try:
        for lane in _lanes_of(args):
            await idle.limit(lane, changes)
            if args.json:
                print_json({"lane": lane, "limits": changes})
    except ValueError as exc:
        name, _, problem = str(exc).partition(":")
        raise InvalidSetting(f"--{name.removesuffix('_seconds').replace('_', '-')}:{problem}") from exc

    text = ", ".join(f"{name} {value:g}" for name, value in changes.items())
    echo_err(f"idle capacity of {', '.join(_lanes_of(args))}: {text}")
    return FINE


async def _open_idle(settings: Settings) -> "IdleControl":
    from starter.steering.keepers import IdleControl

    return IdleControl(await open_client(settings), settings)


def _lanes_of(args: argparse.Namespace) -> list[str]:
    return list(dict.fromkeys(args.lane or LANES))


def _to_document(status: "IdleStatus") -> dict[str, Any]:
    return {
        "lane": status.lane,
        "is_on": status.is_on,
        "doing": status.doing,
        "pulled": status.pulled.dump() | {"mean_early_seconds": round(status.pulled.mean_early_seconds, 3)},
        "limits": status.limits.dump(),
    }


def _to_cells(status: "IdleStatus") -> tuple[str, ...]:
    limits = status.limits
    pulled = status.pulled
    bounds = f"reserve {limits.reserve:g}, quiet {limits.quiet_seconds:g}s, pack-messages {limits.pack_messages}"

    return (
        status.lane,
        "on" if status.is_on else "off",
        status.doing or "-",
        f"{pulled.messages:,}",
        f"{pulled.packs:,}",
        format_seconds(pulled.mean_early_seconds) if pulled.messages + pulled.packs else "-",
        f"{bounds}, reach {format_seconds(limits.reach_seconds)}",
    )
