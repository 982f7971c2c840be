"""The commands about gates: `gates list`, `close` and `open`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from shared.errors import InvalidSetting
from shared.messages.message import clip_reason
from shared.messages.timespan import HORIZON, format_exact, format_moment, format_seconds
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import Commands
from starter.cli.exit_codes import FINE
from starter.cli.interruption import run_interruptibly
from starter.screen import echo_err, print_json, print_table

if TYPE_CHECKING:
    from shared.keepers.gates import GateClosure
    from starter.steering.keepers import GateControl

Answer = TypeVar("Answer")

SHORTEST = timedelta(seconds=1)

CLOSE_EPILOG = """\
Messages whose handler declares the gate wait then, and their handlers are not called. They come back when it opens, \
spread
over a quarter of their wait; one that is opened earlier lets them pass within as long again as it was closed, and a \
minute."""


def add_gates(commands: Commands) -> None:
    """Add the group."""
    group = commands.add_group("gates", "what many messages need, such as a host: which are closed, until when and why")
    group.add("list", run_list, "tell which gates are closed")
    parser = group.add("close", run_close, "let all messages that need a gate wait", prints_data=False)
    parser.epilog = CLOSE_EPILOG
    parser.add_argument("gate", metavar="GATE", help="its name, for example host:example.org")
    parser.add_argument(
        "--for", dest="duration", metavar="DURATION", type=arguments.duration, help="until it is opened when left out"
    )
    parser.add_argument("--reason", default="closed by hand", help="what people read about it")
    parser = group.add("open", run_open, "let messages pass again", prints_data=False)
    parser.add_argument("gate", metavar="GATE", help="its name, as 'dormice gates list' prints it")


def run_list(args: argparse.Namespace, settings: Settings) -> int:
    """Print a line for each closed gate."""
    found = run_interruptibly(_with_gates(settings, lambda gates: gates.fetch(time.time())))
    if args.json:
        for gate, closing in sorted(found.items()):
            print_json(
                {
                    "gate": gate,
                    "closed_at": format_exact(closing.closed_at),
                    "opens_at": None if closing.lasts_for_good else format_exact(closing.opens_at),
                    "reason": closing.reason,
                }
            )
    elif found:
        print_table(("GATE", "CLOSED", "OPENS", "REASON"), (_to_cells(*each) for each in sorted(found.items())))
    else:
        echo_err("all gates are open")
    return FINE


def run_close(args: argparse.Namespace, settings: Settings) -> int:
    """Close a gate."""
    from shared.keepers.gates import GateClosure

    if args.duration is not None and args.duration < SHORTEST:
        raise InvalidSetting(f"--for: is {format_seconds(args.duration.total_seconds())}; give at least a second")
    closing = GateClosure.lasting(args.duration or HORIZON, clip_reason(args.reason))
    run_interruptibly(_with_gates(settings, lambda gates: gates.close(args.gate, closing)))
    until = f"for {format_seconds(args.duration.total_seconds())}" if args.duration else "until it is opened"
    echo_err(f"gate {args.gate}: closed {until}")
    return FINE


def run_open(args: argparse.Namespace, settings: Settings) -> int:
    """Open a gate."""
    run_interruptibly(_with_gates(settings, lambda gates: gates.open(args.gate)))
    echo_err(f"gate {args.gate}: open")
    return FINE


async def _with_gates(settings: Settings, act: "Callable[[GateControl], Awaitable[Answer]]") -> Answer:
    from starter.cli.connection import open_client
    from starter.steering.keepers import GateControl

    return await act(GateControl(await open_client(settings), settings))


def _to_cells(gate: str, closing: "GateClosure") -> tuple[str, ...]:
    opens = "when it is opened" if closing.lasts_for_good else format_moment(closing.opens_at)
    return gate, format_moment(closing.closed_at), opens, closing.reason
