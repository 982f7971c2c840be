"""The commands about idle capacity: `idle status`, `on`, `off` and `limits`."""

import functools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from click import option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.lanes import LANES
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import COUNT, DURATION, LANE, Arguments, Group, read_number
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import echo_err, print_items, print_json

if TYPE_CHECKING:
    from starter.steering.keepers import IdleControl, IdleStatus

LIMITS = ("reserve", "quiet_seconds", "pack_messages", "reach_seconds")
HEADER = ("LANE", "", "DOING", "MESSAGES", "PACKS", "EARLY", "LIMITS")

STATUS_EPILOG = """\
Counts are of messages that have a workflow of their own and of packs, each of which runs up to --pack-messages of its
own at once; a worker that is killed may take the counts of two seconds with it."""


idle = Group("idle", "Spend idle capacity on messages that are not due yet, the earliest due first.", "status")
program.add_command(idle)
lane_option = option("--lane", **LANE, multiple=True, help="lane; may be repeated; all when left out")


@idle.command("status", epilog=STATUS_EPILOG)
@lane_option
async def run_status(args: Arguments, settings: Settings) -> int:
    """Tell what lanes do with their idle capacity."""
    control = await _open_idle(settings)
    found = [await control.status(lane) for lane in _lanes_of(args)]
    print_items(found, _to_document, HEADER, _to_cells, is_json=args.json)
    return FINE


async def _run_switch(word: str, args: Arguments, settings: Settings) -> int:
    control = await _open_idle(settings)
    for lane in _lanes_of(args):
        await control.switch(lane, is_on=word == "on")
        if args.json:
            print_json({"lane": lane, "is_on": word == "on"})
    echo_err(f"idle capacity of {', '.join(_lanes_of(args))}: {word}")
    return FINE


for word, purpose in (
    ("on", "Run messages ahead of time where workers have nothing to do, none before its handler allows it."),
    ("off", "Run nothing ahead of time any more."),
):
    idle.command(word, help=purpose)(lane_option(functools.partial(_run_switch, word)))


@idle.command("limits")
@lane_option
@option(
    "--reserve", metavar="SHARE", type=read_number, help="slots that stay free for what falls due, 0 to 0.95 (0.25)"
)
@option("quiet_seconds", "--quiet", **DURATION, help="a lane is idle after so long without a queue (3s)")
@option("--pack-messages", **COUNT, help="messages that one pack runs ahead at once (50)")
@option(
    "reach_seconds",
    "--reach",
    **DURATION,
    help="a pack runs none ahead that is due so much later than the lane's first (15m)",
)
async def run_limits(args: Arguments, settings: Settings) -> int:
    """Bound what is run ahead of time; limits not given stay."""
    given = {name: value for name in LIMITS if (value := getattr(args, name)) is not None}
    changes = {name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in given.items()}
    if not changes:
        raise InvalidSetting("idle limits: none is given; give for example --reserve 0.5")

    control = await _open_idle(settings)
    try:
        for lane in _lanes_of(args):
            await control.limit(lane, changes)
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


def _lanes_of(args: Arguments) -> list[str]:
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
