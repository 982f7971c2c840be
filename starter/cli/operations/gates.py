"""The commands about gates: `gates list`, `close` and `open`."""

import argparse
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from shared.errors import InvalidSetting
from shared.messages.message import clip_reason
from shared.messages.timespan import HORIZON, format_moment, format_seconds
from shared.settings import Settings
from starter.cli.arguments import DURATION, Commands
from starter.cli.connection import open_client
from starter.cli.exit_codes import FINE
from starter.local.terminal import echo_err, print_items

if TYPE_CHECKING:
    from shared.keepers.gates import GateClosure
    from starter.steering.keepers import GateControl

SHORTEST = timedelta(seconds=1)
HEADER = ("GATE", "CLOSED", "OPENS", "REASON")

CLOSE_EPILOG = """\
Messages whose handler declares the gate wait then, and their handlers are not called. The gates kind:NAME, lane:NAME
and tenant:NAME need no declaration: all messages of the kind, the lane or the tenant wait, also those that come later.
They come back when it opens, spread over a quarter of their wait; one that is opened earlier lets them pass within as
long again as it was closed, and a minute."""


def add(commands: Commands) -> None:
    group = commands.add_group("gates", "what many messages need, such as a host: which are closed, until when and why")
    group.add("list", _run_list, "tell which gates are closed")
    purpose = "let all messages that need a gate wait"
    add = group.add("close", _run_close, purpose, CLOSE_EPILOG, prints_data=False).add_argument
    add("gate", metavar="GATE", help="its name, for example kind:price or host:example.org")
    add("--for", dest="duration", **DURATION, help="until it is opened when left out")
    add("--reason", default="closed by hand", help="what people read about it")
    parser = group.add("open", _run_open, "let messages pass again", prints_data=False)
    parser.add_argument("gate", metavar="GATE", help="its name, as 'dormice gates list' prints it")


async def _run_list(args: argparse.Namespace, settings: Settings) -> int:
    found = await (await _open_gates(settings)).fetch(time.time())
    print_items(sorted(found.items()), _to_document, HEADER, _to_cells, is_json=args.json)
    if not found and not args.json:
        echo_err("all gates are open")
    return FINE


async def _run_close(args: argparse.Namespace, settings: Settings) -> int:
    if args.duration is not None and args.duration < SHORTEST:
        raise InvalidSetting(f"--for: is {format_seconds(args.duration.total_seconds())}; give at least a second")
    from shared.keepers.gates import GateClosure
    from starter.steering.keepers import describe_lack

    closing = GateClosure.lasting(args.duration or HORIZON, clip_reason(args.reason))
    lacking = await (await _open_gates(settings)).close(args.gate, closing)
    until = f"for {format_seconds(args.duration.total_seconds())}" if args.duration else "until it is opened"
    echo_err(f"gate {args.gate}: closed {until}{describe_lack(lacking)}")
    return FINE


async def _run_open(args: argparse.Namespace, settings: Settings) -> int:
    from starter.steering.keepers import describe_lack

    lacking = await (await _open_gates(settings)).open(args.gate)
    echo_err(f"gate {args.gate}: open{describe_lack(lacking)}")
    return FINE


async def _open_gates(settings: Settings) -> "GateControl":
    from starter.steering.keepers import GateControl

    return GateControl(await open_client(settings), settings)


def _to_document(item: "tuple[str, GateClosure]") -> dict[str, Any]:
    gate, closing = item
    return closing.to_document(gate)


def _to_cells(item: "tuple[str, GateClosure]") -> tuple[str, ...]:
    gate, closing = item
    opens = "when it is opened" if closing.lasts_for_good else format_moment(closing.opens_at)
    return gate, format_moment(closing.closed_at), opens, closing.reason
