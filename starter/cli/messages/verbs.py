"""The commands that steer messages: now, reschedule, reprioritize, revise, pause, resume, stop."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import functools
from collections.abc import Callable

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.signals import Pause, Reprioritize, Reschedule, Resume, Revise, RunNow, Signal, Stop, write_moment
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import CommandParser, Commands, add_filter, read_filter
from starter.cli.exit_codes import FINE, PARTLY
from starter.cli.interruption import run_interruptibly
from starter.cli.messages.sending import NamedMessages, SignalRun

MakeSignal = Callable[[argparse.Namespace], Signal]


def add_verbs(commands: Commands) -> None:
    """Add a command for each verb."""
    _add(commands, "now", "run messages as soon as a worker is free; parked ones get fresh attempts", _make_run_now)
    parser = _add(commands, "reschedule", "make messages due at another moment", _make_reschedule)
    parser.add_argument(
        "--at", metavar="MOMENT", type=arguments.moment, required=True, help="when; +15m and now are fine"
    )
    parser = _add(commands, "reprioritize", "give messages another priority, also in the queue", _make_reprioritize)
    parser.add_argument("--priority", metavar="N", type=arguments.priority, required=True, help="1 (first) to 5 (last)")
    parser.add_argument("--at", metavar="MOMENT", type=arguments.moment, help="and make them due at this moment")
    parser = _add(commands, "revise", "replace the payload of messages", _make_revise)
    parser.add_argument(
        "--payload",
        metavar="JSON",
        type=arguments.payload,
        required=True,
        help="the new one; @FILE reads it from a file",
    )
    parser.add_argument("--to-lane", choices=list(LANES), help="and move them to this lane")
    _add(commands, "pause", "hold messages until they are resumed", lambda args: Pause(args.reason))
    _add(commands, "resume", "end the pause of messages", lambda args: Resume(args.reason))
    _add(commands, "stop", "end messages for good; a handler at work finishes first", lambda args: Stop(args.reason))


def _add(commands: Commands, name: str, purpose: str, make: MakeSignal) -> CommandParser:
    parser = commands.add(name, functools.partial(_run, name, make), purpose)
    parser.add_argument("ids", metavar="KIND:ID", nargs="*", help="the messages; - reads them from standard input")
    parser.add_argument("--reason", default="", help="kept with the message: 'dormice show' prints it")
    add_filter(parser)
    group = parser.add_argument_group("many messages at once")
    group.add_argument("--everything", action="store_true", help="all that are alive; instead of a filter")
    group.add_argument("--yes", action="store_true", help="send it; without this, a filter only counts")
    return parser


def _make_run_now(args: argparse.Namespace) -> Signal:
    return RunNow(args.reason)


def _make_reschedule(args: argparse.Namespace) -> Signal:
    return Reschedule(write_moment(args.at), args.reason)


def _make_reprioritize(args: argparse.Namespace) -> Signal:
    return Reprioritize(args.priority, args.at and write_moment(args.at), args.reason)


def _make_revise(args: argparse.Namespace) -> Signal:
    return Revise(args.payload, lane=args.to_lane or "", reason=args.reason)


def _run(verb: str, make: MakeSignal, args: argparse.Namespace, settings: Settings) -> int:
    from starter.steering.sender import check_signal

    signal = make(args)
    check_signal(signal, settings)
    has_filter = not read_filter(args).is_everything
    sending = SignalRun(verb, signal, is_json=args.json)
    if args.ids:
        if args.everything or has_filter:
            raise InvalidSetting(f"{verb}: messages and a filter are given; use one of the two")
        return run_interruptibly(_send_to_named(NamedMessages(args.ids), settings, sending))
    if args.everything is has_filter:
        raise InvalidSetting(
            f"{verb}: name messages as KIND:ID, or select them with --kind, --lane, --state or --due-before; "
            "--everything stands alone and means all that are alive"
        )
    return run_interruptibly(_send_to_selection(args, settings, sending))


async def _send_to_selection(args: argparse.Namespace, settings: Settings, sending: SignalRun) -> int:
    from starter.cli.connection import open_control

    control = await open_control(settings)
    selection = read_filter(args)
    if not args.yes:
        return sending.ask(await control.count(selection))
    return await sending.run(control, control.names(selection))


async def _send_to_named(names: NamedMessages, settings: Settings, sending: SignalRun) -> int:
    from starter.cli.connection import open_control

    code = await sending.run(await open_control(settings), names.read(), are_named=True)
    return code or (PARTLY if names.wrong else FINE)
