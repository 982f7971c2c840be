"""The commands about parked messages: list them, replay them, drop them."""

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from click import option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.messages.placement import workflow_id
from shared.messages.signals import RunNow, Signal, Stop
from shared.settings import Settings
from starter.cli.arguments import COUNT, DURATION, Arguments, Group, join, section
from starter.cli.connection import open_control
from starter.cli.messages.sending import SignalRun, names_argument
from starter.cli.program import program
from starter.local.terminal import describe_moment, echo_err, print_items
from starter.steering.selection import Selection

if TYPE_CHECKING:
    from starter.steering.status.listing import ListedMessage


in_filter = section("Filter")
filter_options = join(
    in_filter("--kind", help="messages of this kind"),
    in_filter("--reason", metavar="TEXT", help="parked for a reason that holds this text; … in it stands for any text"),
    in_filter("--older-than", **DURATION, help="parked longer ago than this, for example 2d"),
)

parked = Group("parked", "Messages that failed for good: list, replay or drop them.", "list")
program.add_command(parked)


@parked.command("list")
@filter_options
@option("--limit", **COUNT, default=50, help="most messages to list (50)")
async def run_list(args: Arguments, settings: Settings) -> int:
    """List parked messages with their reasons."""
    control = await open_control(settings)
    found: list[ListedMessage] = []
    is_kept = _make_filter(args)
    is_cut = False

    async for listed in control.list(Selection(kind=args.kind, state="parked")):
        if is_kept(listed):
            if is_cut := len(found) == args.limit:
                break
            found.append(listed)

    header = ("MESSAGE", "PARKED", "REASON")
    print_items(found, lambda each: each.to_document(), header, _to_cells, is_json=args.json, cuts_names=True)
    if not found:
        echo_err("no parked message matches")
    if is_cut:
        echo_err(f"the first {args.limit:,} of more; --limit N lists more")
    return FINE


def _to_cells(listed: "ListedMessage") -> tuple[str, str, str]:
    return workflow_id(listed.kind, listed.id), describe_moment(listed.parked_at), listed.parked_reason


def _make_filter(args: Arguments) -> "Callable[[ListedMessage], bool]":
    from starter.steering.status.listing import ParkedSelection

    before = None if args.older_than is None else datetime.now(UTC) - args.older_than
    return ParkedSelection(reason=args.reason, before=before).keeps


async def _run_verb(verb: str, signal: Signal, args: Arguments, settings: Settings) -> int:
    if args.ids and (args.kind or args.reason or args.older_than):
        raise InvalidSetting(f"parked {verb}: messages and a filter are given; use one of the two")
    parked = Selection(kind=args.kind, state="parked")
    return await SignalRun(verb, signal, args, "parked").run(settings, parked, _make_filter(args))


for name, signal, purpose in (
    ("replay", RunNow("replayed"), "Run parked messages again, with fresh attempts."),
    ("drop", Stop("dropped while parked"), "End parked messages for good."),
):
    yes = option("--yes", is_flag=True, help="do it; without this, messages are only counted")
    run = join(names_argument, filter_options, yes)(functools.partial(_run_verb, name, signal))
    parked.command(name, help=purpose)(run)
