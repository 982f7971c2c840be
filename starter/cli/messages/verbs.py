"""The commands that steer messages: now, reschedule, reprioritize, revise, pause, resume, stop."""

import argparse
import functools
from collections.abc import Callable

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.signals import Pause, Reprioritize, Reschedule, Resume, Revise, RunNow, Signal, Stop, write_moment
from shared.settings import Settings
from starter.cli.arguments import MOMENT, PAYLOAD, PRIORITY, CommandParser, Commands, add_filter, read_filter
from starter.cli.messages.sending import SignalRun, add_names

MakeSignal = Callable[[argparse.Namespace], Signal]


def add(commands: Commands) -> None:
    add = functools.partial(_add, commands)
    purpose = "run messages as soon as a worker is free; parked ones get fresh attempts"
    add("now", purpose, lambda args: RunNow(args.reason))
    purpose = "make messages due at another time"
    parser = add("reschedule", purpose, lambda args: Reschedule(write_moment(args.due_at), args.reason))
    parser.add_argument("--due-at", "--at", **MOMENT, required=True, help="when; +15m and now are fine")
    parser = add(
        "reprioritize",
        "give messages another priority, also in the queue",
        lambda args: Reprioritize(args.priority, args.due_at and write_moment(args.due_at), args.reason),
    )
    parser.add_argument("--priority", **PRIORITY, required=True, help="1 (first) to 5 (last)")
    parser.add_argument("--due-at", "--at", **MOMENT, help="and make them due then")
    purpose = "replace the payload of messages"
    parser = add("revise", purpose, lambda args: Revise(args.payload, lane=args.to_lane or "", reason=args.reason))
    parser.add_argument("--payload", **PAYLOAD, required=True, help="the new one; @FILE reads it from a file")
    parser.add_argument("--to-lane", choices=list(LANES), help="and move them to this lane")
    add("pause", "hold messages until they are resumed", lambda args: Pause(args.reason))
    add("resume", "end the pause of messages", lambda args: Resume(args.reason))
    add("stop", "end messages for good; a handler at work finishes first", lambda args: Stop(args.reason))


def _add(commands: Commands, name: str, purpose: str, make: MakeSignal) -> CommandParser:
    parser = commands.add(name, functools.partial(_run, name, make), purpose)
    add_names(parser)
    parser.add_argument("--reason", default="", help="kept with the message: 'dormice show' prints it")
    add_filter(parser)
    group = parser.add_argument_group("many messages at once")
    group.add_argument("--everything", action="store_true", help="all that are alive; instead of a filter")
    group.add_argument("--yes", action="store_true", help="send it; without this, a filter only counts")
    return parser


async def _run(verb: str, make: MakeSignal, args: argparse.Namespace, settings: Settings) -> int:
    from starter.steering.selection import Selection
    from starter.steering.sender import check_signal

    signal = make(args)
    check_signal(signal, settings)
    selection = read_filter(args)
    has_filter = selection != Selection()
    if args.ids and (args.everything or has_filter):
        raise InvalidSetting(f"{verb}: messages and a filter are given; use one of the two")
    if not args.ids and args.everything is has_filter:
        raise InvalidSetting(
            f"{verb}: name messages as KIND:ID, or select them with --kind, --lane, --state or --due-before; "
            "--everything stands alone and means all that are alive"
        )
    return await SignalRun(verb, signal, args).run(settings, selection)
