"""The commands about parked messages: list them, replay them, drop them."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import functools
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting, MessageNotFound
from shared.messages.placement import workflow_id
from shared.messages.signals import RunNow, Signal, Stop
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import CommandParser, Commands
from starter.cli.exit_codes import FINE, PARTLY
from starter.cli.interruption import run_interruptibly
from starter.cli.messages.messages import to_line
from starter.cli.messages.sending import Name, NamedMessages, SignalRun
from starter.screen import describe_moment, echo_err, print_json, print_table
from starter.steering.selection import Selection

if TYPE_CHECKING:
    from starter.control import Control
    from starter.steering.status.listing import ListedMessage


def add_parked(commands: Commands) -> None:
    """Add `parked list`, `parked replay` and `parked drop`."""
    group = commands.add_group("parked", "messages that failed for good: list, replay or drop them")
    parser = group.add("list", run_list, "list parked messages with their reasons")
    _add_filter(parser)
    parser.add_argument("--limit", metavar="N", type=arguments.count, default=50, help="most messages to list (50)")
    for name, signal, purpose in (
        ("replay", RunNow("replayed"), "run parked messages again, with fresh attempts"),
        ("drop", Stop("dropped while parked"), "end parked messages for good"),
    ):
        parser = group.add(name, functools.partial(_run_verb, name, signal), purpose)
        parser.add_argument("ids", metavar="KIND:ID", nargs="*", help="the messages; - reads them from standard input")
        _add_filter(parser)
        parser.add_argument("--yes", action="store_true", help="do it; without this, messages are only counted")


def _add_filter(parser: CommandParser) -> None:
    group = parser.add_argument_group("filter")
    group.add_argument("--kind", help="messages of this kind")
    group.add_argument("--reason", metavar="TEXT", help="parked for a reason that holds this text")
    group.add_argument(
        "--older-than", metavar="DURATION", type=arguments.duration, help="parked longer ago than this, for example 2d"
    )


def run_list(args: argparse.Namespace, settings: Settings) -> int:
    """Print parked messages, and on standard error whether there are more."""
    run_interruptibly(_list(args, settings))
    return FINE


async def _list(args: argparse.Namespace, settings: Settings) -> None:
    from starter.cli.connection import open_control

    control = await open_control(settings)
    found: list[ListedMessage] = []
    is_kept, is_cut = _make_filter(args), False
    async for listed in control.list(Selection(kind=args.kind, state="parked")):
        if is_kept(listed):
            if is_cut := len(found) == args.limit:
                break
            found.append(listed)
    if args.json:
        for listed in found:
            print_json(to_line(listed))
    elif found:
        print_table(("MESSAGE", "PARKED", "REASON"), map(_to_cells, found), cuts_names=True)
    if not found:
        echo_err("no parked message matches")
    if is_cut:
        echo_err(f"the first {args.limit:,} of more; --limit N lists more")


def _to_cells(listed: "ListedMessage") -> tuple[str, str, str]:
    return workflow_id(listed.kind, listed.id), describe_moment(listed.parked_at), listed.parked_reason


def _make_filter(args: argparse.Namespace) -> "Callable[[ListedMessage], bool]":
    since = None if args.older_than is None else datetime.now(UTC) - args.older_than

    def is_kept(listed: "ListedMessage") -> bool:
        is_old = since is None or (listed.parked_at is not None and listed.parked_at < since)
        return is_old and (args.reason is None or args.reason in listed.parked_reason)

    return is_kept


def _run_verb(verb: str, signal: Signal, args: argparse.Namespace, settings: Settings) -> int:
    sending = SignalRun(verb, signal, is_json=args.json)
    if not args.ids:
        return run_interruptibly(_send_to_selection(args, settings, sending))
    if args.kind or args.reason or args.older_than:
        raise InvalidSetting(f"parked {verb}: messages and a filter are given; use one of the two")
    return run_interruptibly(_send_to_named(NamedMessages(args.ids), settings, sending))


async def _send_to_selection(args: argparse.Namespace, settings: Settings, sending: SignalRun) -> int:
    from starter.cli.connection import open_control

    control = await open_control(settings)
    names = control.names(Selection(kind=args.kind, state="parked"), _make_filter(args))
    if not args.yes:
        return sending.ask(len([name async for name in names]))
    return await sending.run(control, names)


async def _send_to_named(names: NamedMessages, settings: Settings, sending: SignalRun) -> int:
    from starter.cli.connection import open_control

    control = await open_control(settings)
    code = await sending.run(control, _find_parked(control, names, sending), are_named=True)
    return code or (PARTLY if names.wrong else FINE)


async def _find_parked(control: "Control", names: NamedMessages, sending: SignalRun) -> AsyncIterator[Name]:
    """Give the names of parked messages; the others are reported and left alone."""
    async for kind, message_id in names.read():
        try:
            listed = await control.look_up(kind, message_id)
        except MessageNotFound as exc:
            sending.note_unknown(str(exc))
            continue
        if listed.state == "parked":
            yield kind, message_id
        else:
            sending.pass_over(
                f"{workflow_id(kind, message_id)} is not parked but {listed.state}; nothing was sent to it"
            )
