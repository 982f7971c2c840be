"""The commands about gates: `gates list`, `close` and `open`."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from click import argument, option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.messages.message import clip_reason
from shared.messages.timespan import HORIZON, format_moment, format_seconds
from shared.settings import Settings
from starter.cli.arguments import DURATION, MOMENT, Arguments, Group
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import echo_err, print_items, print_json

if TYPE_CHECKING:
    from shared.keepers.gates import GateClosure
    from starter.steering.keepers import GateControl

HEADER = ("GATE", "CLOSED", "OPENS", "REASON")

CLOSE_EPILOG = """\
Messages whose handler declares the gate wait then, and their handlers are not called. The gates kind:NAME, lane:NAME
and tenant:NAME need no declaration: all messages of the kind, the lane or the tenant wait, also those that come later.
They come back when it opens, spread over a quarter of their wait; one that is opened earlier lets them pass within as
long again as it was closed, and a minute."""


gates = Group("gates", "What many messages need, such as a host: which are closed, until when and why.", "list")
program.add_command(gates)


@gates.command("list")
async def run_list(args: Arguments, settings: Settings) -> int:
    """Tell which gates are closed."""
    found = await (await _open_gates(settings)).fetch(time.time())
    print_items(sorted(found.items()), _to_document, HEADER, _to_cells, is_json=args.json)
    if not found and not args.json:
        echo_err("all gates are open")
    return FINE


@gates.command("close", epilog=CLOSE_EPILOG)
@argument("gate", help="its name, for example kind:price or host:example.org")
@option("duration", "--for", **DURATION, help="for so long; until it is opened when left out")
@option("opens_at", "--until", **MOMENT, help="or until then")
@option("--reason", default="closed by hand", help="what people read about it")
async def run_close(args: Arguments, settings: Settings) -> int:
    """Let all messages that need a gate wait."""
    from starter.steering.keepers import describe_lack

    closing = _read_closure(args)
    lacking = await (await _open_gates(settings)).close(args.gate, closing)
    echo_err(f"gate {args.gate}: closed {_describe_span(closing)}{describe_lack(lacking)}")
    if args.json:
        print_json(closing.to_document(args.gate))
    return FINE


def _read_closure(args: Arguments) -> "GateClosure":
    from shared.keepers.gates import GateClosure

    if args.duration is not None and args.opens_at is not None:
        raise InvalidSetting("--until: goes on without --for; leave one of them out")

    now = datetime.now(UTC)
    reason = clip_reason(args.reason)
    option = "--until"
    opens_at = args.opens_at
    given = "" if opens_at is None else format_moment(opens_at.timestamp())
    if args.duration is not None:
        # more would leave the calendar
        option = "--for"
        opens_at = now + min(args.duration, 2 * HORIZON)
        given = format_seconds(args.duration.total_seconds())
    try:
        return GateClosure.until(opens_at, reason, now)
    except ValueError as exc:
        raise InvalidSetting(f"{option}: is {given}, which {exc}") from exc


def _describe_span(closing: "GateClosure") -> str:
    if closing.lasts_for_good:
        return "until it is opened"
    span = format_seconds(closing.opens_at - closing.closed_at)
    return f"for {span}, until {format_moment(closing.opens_at)}"


@gates.command("open")
@argument("gate", help="its name, as 'dormice gates list' prints it")
async def run_open(args: Arguments, settings: Settings) -> int:
    """Let messages pass again."""
    from starter.steering.keepers import describe_lack

    lacking = await (await _open_gates(settings)).open(args.gate)
    echo_err(f"gate {args.gate}: open{describe_lack(lacking)}")
    if args.json:
        print_json({"gate": args.gate, "closed_at": None, "opens_at": None, "reason": ""})
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
