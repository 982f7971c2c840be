"""The command `start`."""

import argparse

from shared.lanes import LANES
from shared.settings import Settings
from starter.cli.arguments import DURATION, MOMENT, PAYLOAD, PRIORITY, Commands
from starter.cli.connection import open_client
from starter.cli.exit_codes import FINE, PARTLY
from starter.terminal import echo_err, print_json, print_table

FIELDS = ("kind", "id", "payload", "lane", "scheduled_at", "priority", "tenant", "correlation_id", "idempotency_key")


def add(commands: Commands) -> None:
    parser = commands.add("start", _run, "start one message; one that has finished is started anew")
    add = parser.add_argument
    add("kind", metavar="KIND", help="what handles it; 'dormice handlers' lists the kinds")
    add("id", metavar="ID", help="its name, 1 to 200 bytes, unique within the kind")
    add("--payload", **PAYLOAD, help="what its handler gets; @FILE reads it from a file")
    add("--lane", choices=list(LANES), help="the handler's own when left out")
    add("--scheduled-at", **MOMENT, help="first run, now when left out; +15m is fine")
    add("--tolerance", **DURATION, help="how much later is fine, for example 10m")
    add("--priority", **PRIORITY, help="1 (first) to 5 (last); 3 when left out")
    add("--tenant", help="whose it is: tenants get fair shares of a busy lane")
    add("--correlation-id", metavar="ID", help="goes into every log line about it")
    add("--idempotency-key", metavar="KEY", help="the same key never starts the message twice")


async def _run(args: argparse.Namespace, settings: Settings) -> int:
    from activities.registry import envelope_rules, load_registry
    from shared.messages.envelope import parse_envelope
    from starter.control import Control
    from starter.starting.receipts import StartOutcome

    fields = {name: getattr(args, name) for name in FIELDS}
    fields["tolerance_seconds"] = None if args.tolerance is None else args.tolerance.total_seconds()
    given = {name: value for name, value in fields.items() if value is not None}
    registry = load_registry(settings)
    envelope = parse_envelope(given, envelope_rules(settings, registry))
    control = Control(await open_client(settings, is_starting=True), settings, registry)
    receipt = await control.start(envelope)
    name, outcome = receipt.workflow_id, receipt.outcome
    if args.json:
        print_json({"workflow_id": name, "outcome": outcome.value, "run_id": receipt.run_id, "reason": receipt.reason})
    else:
        print_table([name, outcome.value], [])
    if outcome is StartOutcome.STARTED:
        return FINE
    echo_err(f"dormice: {name} is alive already, nothing was started; 'dormice show {name}' tells more")
    return PARTLY
