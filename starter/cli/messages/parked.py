"""The commands about parked messages: list them, replay them, drop them."""

import argparse
import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.messages.placement import workflow_id
from shared.messages.signals import RunNow, Signal, Stop
from shared.settings import Settings
from starter.cli.arguments import COUNT, DURATION, CommandParser, Commands
from starter.cli.connection import open_control
from starter.cli.messages.sending import SignalRun, add_names
from starter.local.terminal import describe_moment, echo_err, print_items
from starter.steering.selection import Selection

if TYPE_CHECKING:
    from starter.steering.status.listing import ListedMessage


def add(commands: Commands) -> None:
    purpose = "messages that failed for good: list, replay or drop them"
    group = commands.add_group("parked", purpose, default="list")
    parser = group.add("list", _run_list, "list parked messages with their reasons")
    _add_filter(parser)
    parser.add_argument("--limit", **COUNT, default=50, help="most messages to list (50)")

    for name, signal, purpose in (
        ("replay", RunNow("replayed"), "run parked messages again, with fresh attempts"),
        ("drop", Stop("dropped while parked"), "end parked messages for good"),
    ):
        parser = group.add(name, functools.partial(_run_verb, name, signal), purpose)
        add_names(parser)
        _add_filter(parser)
        parser.add_argument("--yes", action="store_true", help="do it; without this, messages are only counted")


def _add_filter(parser: CommandParser) -> None:
    add = parser.add_argument_group("filter").add_argument
    add("--kind", help="messages of this kind")
    add("--reason", metavar="TEXT", help="parked for a reason that holds this text; … in it stands for any text")
    add("--older-than", **DURATION, help="parked longer ago than this, for example 2d")


async def _run_list(args: argparse.Namespace, settings: Settings) -> int:
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


def _make_filter(args: argparse.Namespace) -> "Callable[[ListedMessage], bool]":
    from starter.steering.status.listing import ParkedSelection

    before = None if args.older_than is None else datetime.now(UTC) - args.older_than
    return ParkedSelection(reason=args.reason, before=before).keeps


async def _run_verb(verb: str, signal: Signal, args: argparse.Namespace, settings: Settings) -> int:
    if args.ids and (args.kind or args.reason or args.older_than):
        raise InvalidSetting(f"parked {verb}: messages and a filter are given; use one of the two")
    parked = Selection(kind=args.kind, state="parked")
    return await SignalRun(verb, signal, args, "parked").run(settings, parked, _make_filter(args))
