"""The commands `start` and `list`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
from typing import TYPE_CHECKING, Any

from shared.lanes import LANES
from shared.messages.placement import workflow_id
from shared.messages.timespan import format_moment
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import Commands, add_filter, read_filter
from starter.cli.exit_codes import FINE, PARTLY
from starter.cli.interruption import run_interruptibly
from starter.screen import describe_distance, echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from activities.registry import Registry
    from shared.messages.envelope import Envelope
    from starter.starting.receipts import Receipt
    from starter.steering.status.listing import ListedMessage

LIST_EPILOG = """\
IN says "soon" where the index does not know when: such a message is due by now, or within a minute or so, because
moves by less than the setting index_after are not indexed. With --json its due_at is null and is_due_soon true.
'dormice show' asks the message itself."""


def add_start(commands: Commands) -> None:
    """Add `start`."""
    parser = commands.add("start", run_start, "start one message; one that has finished is started anew")
    add = parser.add_argument
    add("kind", metavar="KIND", help="what handles it; 'dormice handlers' lists the kinds")
    add("id", metavar="ID", help="its name, 1 to 200 bytes, unique within the kind")
    add("--payload", metavar="JSON", type=arguments.payload, help="what its handler gets; @FILE reads it from a file")
    add("--lane", choices=list(LANES), help="the handler's own when left out")
    add("--scheduled-at", metavar="MOMENT", type=arguments.moment, help="first run, now when left out; +15m is fine")
    add("--tolerance", metavar="DURATION", type=arguments.duration, help="how much later is fine, for example 10m")
    add("--priority", metavar="N", type=arguments.priority, help="1 (first) to 5 (last); 3 when left out")
    add("--tenant", help="whose it is: tenants get fair shares of a busy lane")
    add("--correlation-id", metavar="ID", help="goes into every log line about it")
    add("--idempotency-key", metavar="KEY", help="the same key never starts the message twice")


def add_list(commands: Commands) -> None:
    """Add `list`."""
    parser = commands.add("list", run_list, "list messages, newest start first; the index may lag by a moment")
    parser.epilog = LIST_EPILOG
    add_filter(parser)
    parser.add_argument("--limit", metavar="N", type=arguments.count, default=50, help="most messages to list (50)")


def run_start(args: argparse.Namespace, settings: Settings) -> int:
    """Start one message and print what became of it."""
    from activities.registry import envelope_rules, load_registry
    from shared.messages.envelope import parse_envelope
    from starter.starting.receipts import StartOutcome

    fields = {
        "kind": args.kind,
        "id": args.id,
        "payload": args.payload,
        "lane": args.lane,
        "scheduled_at": args.scheduled_at,
        "tolerance_seconds": None if args.tolerance is None else args.tolerance.total_seconds(),
        "priority": args.priority,
        "tenant": args.tenant,
        "correlation_id": args.correlation_id,
        "idempotency_key": args.idempotency_key,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    registry = load_registry(settings)
    envelope = parse_envelope(given, envelope_rules(settings, registry))
    receipt = run_interruptibly(_start(envelope, settings, registry))
    if args.json:
        print_json(
            {
                "workflow_id": receipt.workflow_id,
                "outcome": receipt.outcome.value,
                "run_id": receipt.run_id,
                "reason": receipt.reason,
            }
        )
    else:
        print_table([receipt.workflow_id, receipt.outcome.value], [])
    if receipt.outcome is StartOutcome.STARTED:
        return FINE
    name = receipt.workflow_id
    echo_err(f"dormice: {name} is alive already, nothing was started; 'dormice show {name}' tells more")
    return PARTLY


async def _start(envelope: "Envelope", settings: Settings, registry: "Registry") -> "Receipt[None]":
    from starter.cli.connection import open_client
    from starter.control import Control

    return await Control(await open_client(settings, is_starting=True), settings, registry).start(envelope)


def run_list(args: argparse.Namespace, settings: Settings) -> int:
    """Print messages, and on standard error how many more there are."""
    run_interruptibly(_list(args, settings))
    return FINE


async def _list(args: argparse.Namespace, settings: Settings) -> None:
    from starter.cli.connection import open_control

    control = await open_control(settings)
    selection = read_filter(args)
    found: list[ListedMessage] = []
    shown = 0
    async for listed in control.list(selection, args.limit):
        shown += 1
        if args.json:
            print_json(to_line(listed))
        else:
            found.append(listed)
    if found:
        print_table(("MESSAGE", "LANE", "STATE", "DUE", "IN"), map(_to_cells, found), cuts_names=True)
    if shown == 0:
        echo_err("no message matches")
    if shown == args.limit and (total := await control.count(selection)) > shown:
        echo_err(f"{shown:,} of {plural(total, 'message')}; --limit N lists more")


def to_line(listed: "ListedMessage") -> dict[str, Any]:
    """Give a listed message as the object that `--json` prints."""
    line: dict[str, Any] = {
        "kind": listed.kind,
        "id": listed.id,
        "lane": listed.lane,
        "state": listed.state,
        "due_at": listed.due_at,
        "is_due_soon": listed.is_due_soon,
        "earliest_at": listed.earliest_at,
        "started_at": listed.started_at,
    }
    if listed.state == "parked":
        line |= {"parked_reason": listed.parked_reason, "parked_at": listed.parked_at}
    return line


def _to_cells(listed: "ListedMessage") -> tuple[str, ...]:
    name = workflow_id(listed.kind, listed.id)
    if listed.state != "active":
        return name, listed.lane, listed.state, "-", "-"
    if listed.due_at is None:
        return name, listed.lane, listed.state, "-", "soon"
    due = format_moment(listed.due_at.timestamp())
    return name, listed.lane, listed.state, due, describe_distance(listed.due_at)
