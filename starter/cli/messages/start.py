"""The commands `start` and `upsert`."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from click import argument, option

from shared.errors import MessageAlive
from shared.exit import FINE, PARTLY
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import DURATION, LANE, MOMENT, OFFSET, PAYLOAD, PRIORITY, Arguments, join, section
from starter.cli.connection import open_client
from starter.cli.messages.waiting import EPILOG, explain_end, to_cells, wait_for_end, wait_option
from starter.cli.program import program
from starter.local.terminal import describe_moment, echo_err, print_json, print_table

if TYPE_CHECKING:
    from shared.messages.envelope import Envelope
    from starter.control import Control
    from starter.starting.receipts import Receipt

FIELDS = (
    *("kind", "id", "payload", "lane", "scheduled_at", "expires_at"),
    *("priority", "tenant", "correlation_id", "idempotency_key"),
)


envelope_options = join(
    argument("kind", help="what handles it; 'dormice handlers' lists the kinds"),
    argument("id", help="its name, 1 to 200 bytes, unique within the kind"),
    option("--payload", **PAYLOAD, help="what its handler gets; @FILE reads it from a file"),
    option("--lane", **LANE, help="the handler's own when left out"),
    option("--scheduled-at", "--at", **MOMENT, help="next run, now when left out; +15m is fine"),
    option("--expires-at", **MOMENT, help="when it ends, whatever it waits for; +3d is fine"),
    option("--tolerance", **DURATION, help="how much later is fine, for example 10m"),
    option("--priority", **PRIORITY, help="1 (first) to 5 (last); 3 when left out"),
    option("--tenant", help="whose it is: tenants get fair shares of a busy lane"),
    option("--correlation-id", metavar="ID", help="goes into every log line about it"),
    option("--idempotency-key", metavar="KEY", help="the same key never does this twice, and stands for one body"),
    wait_option,
)
in_conditions = section("Conditions, without which it is changed whatever it is about to do")


@program.command("start", epilog=EPILOG)
@envelope_options
async def start(args: Arguments, settings: Settings) -> int:
    """Start one message; one that has finished is started anew."""
    control, envelope = await _open(args, settings)
    try:
        receipt = await control.start(envelope)
    except MessageAlive as exc:
        _report(args, exc.workflow_id, "already running", exc.run_id)
        echo_err(f"dormice: {exc}")
        return PARTLY
    return await _finish(args, control, receipt, envelope)


@program.command("upsert", epilog=EPILOG)
@envelope_options
@in_conditions("--if-version", **OFFSET, help="only if it is alive and still at this version")
@in_conditions("--if-due-before", **MOMENT, help="only if it is alive and due before then")
async def upsert(args: Arguments, settings: Settings) -> int:
    """Start one message, or give it payload, lane, priority and due time if it is alive."""
    control, envelope = await _open(args, settings)
    receipt = await control.upsert(envelope, if_version=args.if_version, if_due_before=args.if_due_before)
    return await _finish(args, control, receipt, envelope)


async def _open(args: Arguments, settings: Settings) -> "tuple[Control, Envelope]":
    from activities.registry import envelope_rules, load_registry
    from shared.messages.envelope import parse_envelope
    from starter.control import Control

    fields = {name: getattr(args, name) for name in FIELDS}
    fields["tolerance_seconds"] = None if args.tolerance is None else args.tolerance.total_seconds()
    given = {name: value for name, value in fields.items() if value is not None}
    registry = load_registry(settings)
    envelope = parse_envelope(given, envelope_rules(settings, registry))
    return Control(await open_client(settings, is_starting=True), settings, registry), envelope


async def _finish(args: Arguments, control: "Control", receipt: "Receipt[None]", envelope: "Envelope") -> int:
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
    args: Arguments,
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
