"""The commands that steer messages: now, reschedule, reprioritize, revise, pause, resume, stop."""

import functools

from click import Command, option

from shared.errors import InvalidSetting
from shared.messages.signals import VERBS, Signal, list_fields, make_signal
from shared.settings import Settings
from starter.cli.arguments import (
    LANE,
    MOMENT,
    PAYLOAD,
    PRIORITY,
    Arguments,
    due_before_option,
    filter_options,
    join,
    read_filter,
    section,
)
from starter.cli.messages.sending import SignalRun, names_argument
from starter.cli.program import program

OPTIONS = {"lane": "to_lane"}
"""Field of a signal → the option that sets it, where the option of its name is one of the filter."""


async def _run(command: str, verb: str, args: Arguments, settings: Settings) -> int:
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


def _read_signal(verb: str, args: Arguments) -> Signal:
    """Read the signal of a verb from the options that are named like its fields; what has no option is left out."""
    given = vars(args)
    return make_signal(verb, **{name: given.get(OPTIONS.get(name, name)) for name in list_fields(VERBS[verb])})


in_bulk = section("Many messages at once")
verb_options = join(
    names_argument,
    option("--reason", default="", help="kept with the message: 'dormice show' prints it"),
    filter_options,
    due_before_option,
    in_bulk("--everything", is_flag=True, help="all that are alive; instead of a filter"),
    in_bulk("--yes", is_flag=True, help="send it; without this, a filter only counts"),
)


def _add(name: str, purpose: str, verb: str = "") -> Command:
    return program.command(name, help=purpose)(verb_options(functools.partial(_run, name, verb or name)))


_add("now", "Run messages as soon as a worker is free; parked ones get fresh attempts.", "run_now")
reschedule = _add("reschedule", "Make messages due at another time.")
option("--due-at", "--at", **MOMENT, required=True, help="when; +15m and now are fine")(reschedule)
reprioritize = _add("reprioritize", "Give messages another priority, also in the queue.")
option("--priority", **PRIORITY, required=True, help="1 (first) to 5 (last)")(reprioritize)
option("--due-at", "--at", **MOMENT, help="and make them due then")(reprioritize)
revise = _add("revise", "Replace the payload of messages.")
option("--payload", **PAYLOAD, required=True, help="the new one; @FILE reads it from a file")(revise)
option("--to-lane", **LANE, help="and move them to this lane")(revise)
_add("pause", "Hold messages until they are resumed.")
_add("resume", "End the pause of messages.")
_add("stop", "End messages for good; a handler at work finishes first.")
