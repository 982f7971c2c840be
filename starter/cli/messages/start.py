"""The commands `start` and `upsert`."""

import argparse
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shared.errors import MessageAlive
from shared.exit import FINE, PARTLY
from shared.lanes import LANES
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import DURATION, MOMENT, OFFSET, PAYLOAD, PRIORITY, CommandParser, Commands
from starter.cli.connection import open_client
from starter.cli.messages.waiting import EPILOG, add_wait, explain_end, to_cells, wait_for_end
from starter.local.terminal import describe_moment, echo_err, print_json, print_table

if TYPE_CHECKING:
    from shared.messages.envelope import Envelope
    from starter.control import Control
    from starter.starting.receipts import Receipt

FIELDS = (
    *("kind", "id", "payload", "lane", "scheduled_at", "expires_at"),
    *("priority", "tenant", "correlation_id", "idempotency_key"),
)


def add(commands: Commands) -> None:
    _add_envelope(commands.add("start", _start, "start one message; one that has finished is started anew", EPILOG))
    purpose = "start one message, or give it payload, lane, priority and due time if it is alive"
    parser = commands.add("upsert", _upsert, purpose, EPILOG)
    _add_envelope(parser)
    add = parser.add_argument_group("conditions, without which it is changed whatever it is about to do").add_argument
    add("--if-version", **OFFSET, help="only if it is alive and still at this version")
    add("--if-due-before", **MOMENT, help="only if it is alive and due before then")


def _add_envelope(parser: CommandParser) -> None:
    add = parser.add_argument
    add("kind", metavar="KIND", help="what handles it; 'dormice handlers' lists the kinds")
    add("id", metavar="ID", help="its name, 1 to 200 bytes, unique within the kind")
    add("--payload", **PAYLOAD, help="what its handler gets; @FILE reads it from a file")
    add("--lane", choices=list(LANES), help="the handler's own when left out")
    add("--scheduled-at", "--at", **MOMENT, help="next run, now when left out; +15m is fine")
    add("--expires-at", **MOMENT, help="when it ends, whatever it waits for; +3d is fine")
    add("--tolerance", **DURATION, help="how much later is fine, for example 10m")
    add("--priority", **PRIORITY, help="1 (first) to 5 (last); 3 when left out")
    add("--tenant", help="whose it is: tenants get fair shares of a busy lane")
    add("--correlation-id", metavar="ID", help="goes into every log line about it")
    add("--idempotency-key", metavar="KEY", help="the same key never does this twice, and stands for one body")
    add_wait(parser)


async def _start(args: argparse.Namespace, settings: Settings) -> int:
    control, envelope = await _open(args, settings)
    try:
        receipt = await control.start(envelope)
    except MessageAlive as exc:
        _report(args, exc.workflow_id, "already running", exc.run_id)
        echo_err(f"dormice: {exc}")
        return PARTLY
    return await _finish(args, control, receipt, envelope)


async def _upsert(args: argparse.Namespace, settings: Settings) -> int:
    control, envelope = await _open(args, settings)
    receipt = await control.upsert(envelope, if_version=args.if_version, if_due_before=args.if_due_before)
    return await _finish(args, control, receipt, envelope)


async def _open(args: argparse.Namespace, settings: Settings) -> "tuple[Control, Envelope]":
    from activities.registry import envelope_rules, load_registry
    from shared.messages.envelope import parse_envelope
    from starter.control import Control

    fields = {name: getattr(args, name) for name in FIELDS}
    fields["tolerance_seconds"] = None if args.tolerance is None else args.tolerance.total_seconds()
    given = {name: value for name, value in fields.items() if value is not None}
    registry = load_registry(settings)
    envelope = parse_envelope(given, envelope_rules(settings, registry))
    return Control(await open_client(settings, is_starting=True), settings, registry), envelope


async def _finish(args: argparse.Namespace, control: "Control", receipt: "Receipt[None]", envelope: "Envelope") -> int:
    """Print a receipt and, with --wait, what becomes of the message; gives the exit code."""
    given = (args, receipt.workflow_id, receipt.outcome.value, receipt.run_id, receipt.reason)
    now = datetime.now(UTC)
    due: dict[str, Any] = {
        "is_due_now": receipt.has_taken and envelope.is_due(now),
        "due": _describe_due(receipt, envelope, now),
    }
    if args.wait is None or not args.json:
        _report(*given, **due)
    if receipt.reason:
        echo_err(f"dormice: {receipt.reason}")
    if args.wait is None:
        return FINE
    sys.stdout.flush()
    from starter.starting.receipts import StartOutcome
    from starter.steering.message_view import to_document

    found: dict[str, Any] = {"state": None, "version": None, "result": None}
    try:
        if receipt.outcome is StartOutcome.REVISED:
            await control.show(args.kind, args.id)  # its answer comes after the change, so no older state is the end
        view = await wait_for_end(control, args.kind, args.id, args.wait)
        document = to_document(view)
        found = {name: document[name] for name in found}
    finally:
        if args.json:
            _report(*given, **due, **found)
    if not args.json:
        print_table(to_cells(document), [])
    if view.note:
        echo_err(f"note: {view.note}")
    code, sentence = explain_end(view, args.wait)
    if sentence:
        echo_err(f"dormice: {sentence}")
    return code


def _describe_due(receipt: "Receipt[None]", envelope: "Envelope", now: datetime) -> str:
    """Say when a message is due that was started or changed; empty for one that was left as it is."""
    from starter.starting.receipts import StartOutcome

    if not receipt.has_taken:
        return ""
    due = "due now" if envelope.is_due(now) else f"due {describe_moment(envelope.scheduled_at)}"
    # only a first run is spread in the sender's tolerance: an upsert of a message that is alive has none
    if receipt.outcome is StartOutcome.STARTED and envelope.tolerance_seconds:
        return f"{due}, or up to {format_seconds(envelope.tolerance_seconds)} later"
    return due


def _report(
    args: argparse.Namespace,
    name: str,
    outcome: str,
    run_id: str,
    reason: str = "",
    *,
    due: str = "",
    is_due_now: bool = False,
    **found: Any,
) -> None:
    if args.json:
        document = {"workflow_id": name, "outcome": outcome, "is_due_now": is_due_now, "run_id": run_id}
        print_json({**document, "reason": reason, **found})
    else:
        print_table([name, outcome, *filter(None, [due])], [])
