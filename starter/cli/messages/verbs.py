"""The commands that steer messages: now, reschedule, reprioritize, revise, pause, resume, stop."""

import argparse
import functools

from shared.errors import InvalidSetting
from shared.lanes import LANES
from shared.messages.signals import VERBS, Signal, list_fields, make_signal
from shared.settings import Settings
from starter.cli.arguments import MOMENT, PAYLOAD, PRIORITY, CommandParser, Commands, add_filter, read_filter
from starter.cli.messages.sending import SignalRun, add_names

OPTIONS = {"lane": "to_lane"}
"""Field of a signal → the option that sets it, where the option of its name is one of the filter."""


def add(commands: Commands) -> None:
    add = functools.partial(_add, commands)
    add("now", "run messages as soon as a worker is free; parked ones get fresh attempts", verb="run_now")
    parser = add("reschedule", "make messages due at another time")
    parser.add_argument("--due-at", "--at", **MOMENT, required=True, help="when; +15m and now are fine")
    parser = add("reprioritize", "give messages another priority, also in the queue")
    parser.add_argument("--priority", **PRIORITY, required=True, help="1 (first) to 5 (last)")
    parser.add_argument("--due-at", "--at", **MOMENT, help="and make them due then")
    parser = add("revise", "replace the payload of messages")
    parser.add_argument("--payload", **PAYLOAD, required=True, help="the new one; @FILE reads it from a file")
    parser.add_argument("--to-lane", choices=list(LANES), help="and move them to this lane")
    add("pause", "hold messages until they are resumed")
    add("resume", "end the pause of messages")
    add("stop", "end messages for good; a handler at work finishes first")


def _add(commands: Commands, name: str, purpose: str, verb: str = "") -> CommandParser:
    parser = commands.add(name, functools.partial(_run, name, verb or name), purpose)
    add_names(parser)
    parser.add_argument("--reason", default="", help="kept with the message: 'dormice show' prints it")
    add_filter(parser)
    group = parser.add_argument_group("many messages at once")
    group.add_argument("--everything", action="store_true", help="all that are alive; instead of a filter")
    group.add_argument("--yes", action="store_true", help="send it; without this, a filter only counts")
    return parser


async def _run(command: str, verb: str, args: argparse.Namespace, settings: Settings) -> int:
    from starter.steering.selection import Selection
    from starter.steering.sender import check_signal

    signal = _read_signal(verb, args)
    check_signal(signal, settings)
    selection = read_filter(args)
    has_filter = selection != Selection()
    if args.ids and (args.everything or has_filter):
        raise InvalidSetting(f"{command}: messages and a filter are given; use one of the two")
    if not args.ids and args.everything is has_filter:
        raise InvalidSetting(
            f"{command}: name messages as KIND:ID, or select them with --kind, --lane, --state or --due-before; "
            "--everything stands alone and means all that are alive"
        )
    return await SignalRun(command, signal, args).run(settings, selection)


def _read_signal(verb: str, args: argparse.Namespace) -> Signal:
    """Read the signal of a verb from the options that are named like its fields; what has no option is left out."""
    given = vars(args)
    return make_signal(verb, **{name: given.get(OPTIONS.get(name, name)) for name in list_fields(VERBS[verb])})
