"""`./run demo`: real feed addresses become messages that visit a site on loopback, sleep, and come back.

Only the pages are not real: Temporal's embedded server, a worker process and the built-in http handler are. Some of the
feeds are started directly, so that there is something to see until Spark is up, which prepares and starts the others.
With `--encoding pack` there are many more messages, in packs, all started directly, and their handler waits a few
milliseconds instead of visiting a page; with `--kafka`, both come through a topic of a real broker and the real bridge.
The board and the report are computed from a ledger that the handlers write.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from examples import messages
from examples.board import Board
from examples.ledger import LEDGER_VARIABLE, Ledger, audit, quantile
from examples.site import run_site
from examples.starting import TOPIC, Gate, open_gate, start_directly, start_with_spark
from shared.errors import DormiceError
from shared.exit import INTERRUPTED
from shared.messages.envelope import Envelope
from shared.messages.placement import workflow_id
from starter.cli.interruption import call_at_signals
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.kafka.broker import check_extras
from starter.local.supervised_process import find_free_port, run_supervised

WORKER = (sys.executable, "-m", "worker", "--processes", "1", "--drain-seconds", "5")
STOP_SECONDS = 8.0
OVERDUE_GRACE_SECONDS = 15.0
DIRECT_SHARE = 1 / 4  # share of the feeds that is started before Spark is up
SPARK_COMMANDS = "dormice spark prepare messages.jsonl manifest && dormice spark start manifest"


async def run_demo(args: argparse.Namespace, console: Console) -> dict[str, Any] | None:
    """Run the demonstration until its time is over or a signal comes; give its report, None if not all were started."""
    stopping = asyncio.Event()
    call_at_signals(stopping.set)
    if args.kafka:
        check_extras()

    with tempfile.TemporaryDirectory(prefix="dormice-demo-") as name, run_site() as site:
        folder = Path(name)
        options = EmbeddedOptions(data=folder / "data", port=find_free_port(), ui_port=find_free_port())
        others = " and a Kafka broker" if args.kafka else ""
        console.print(f"starting Temporal's embedded server{others} …")

        async with (
            run_embedded(options) as server,
            run_supervised(WORKER, folder / "worker.log", make_environment(server, folder), stop_seconds=STOP_SECONDS),
            open_gate(folder, make_environment(server, folder)) if args.kafka else contextlib.nullcontext() as gate,
        ):
            if args.encoding == "pack":
                envelopes = messages.make_packed(args.messages or messages.PACKED_MESSAGES, time.time())
            else:
                envelopes = messages.make_feeds(messages.read_feeds()[: args.messages], site)

            board = Board(console, _make_footer(server, envelopes[0], gate))
            ledger = Ledger(folder / "ledger.jsonl")

            starting = asyncio.create_task(start_all(server, folder, envelopes, gate, board))
            try:
                started_at = await board.show(ledger, args.seconds, starting, stopping)
            finally:
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)

        return None if started_at is None else make_report(ledger, envelopes, started_at)


def make_environment(server: EmbeddedServer, folder: Path) -> dict[str, str]:
    """Give the environment of the processes that belong to the demonstration."""
    return {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": "default",
        "DORMICE_HANDLERS": "examples.handlers",
        "DORMICE_HTTP_ALLOW_PRIVATE": "true",
        LEDGER_VARIABLE: f"{folder}/ledger.jsonl",
    }


async def start_all(
    server: EmbeddedServer, folder: Path, envelopes: Sequence[Envelope], gate: Gate | None, board: Board
) -> None:
    """Start every message: through Kafka if there is a gate; otherwise packed ones directly, most feeds with Spark."""
    with_spark = gate is None and envelopes[0].kind != messages.PACKED_KIND
    count = math.ceil(len(envelopes) * DIRECT_SHARE) if with_spark else len(envelopes)
    board.announce(f"starting {count:,} messages")
    await (start_directly(server, envelopes[:count]) if gate is None else gate.start_all(server, envelopes))
    board.add((envelope.id, envelope.lane or "") for envelope in envelopes[:count])

    if others := envelopes[count:]:
        board.announce(f"Spark prepares and starts {len(others):,} more", SPARK_COMMANDS)
        await start_with_spark(folder, make_environment(server, folder), others)
        board.add((envelope.id, envelope.lane or "") for envelope in others)


def _make_footer(server: EmbeddedServer, example: Envelope, gate: Gate | None) -> str:
    prefix = f"  TEMPORAL_ADDRESS={server.address} .venv/bin/dormice"
    name = workflow_id(example.kind, example.id)
    source = "" if gate is None else f"Kafka: topic {TOPIC} of the broker at {gate.address}\n"

    return (
        f"{source}Web UI: {server.ui_url}\n"
        "Try from a second terminal:\n"
        f"{prefix} list --kind {example.kind} --limit 5\n"
        f"{prefix} show '{name}'\n"
        f"{prefix} now '{name}'\n"
        "Start messages from a file of your own, beside a worker of your own:\n"
        "  dormice spark prepare feeds.csv my-feeds --kind http --id-from /url\n"
        "  dormice spark start my-feeds"
    )


def make_report(ledger: Ledger, envelopes: Sequence[Envelope], started_at: float) -> dict[str, Any]:
    """Compute the report from the ledger alone; `started_at` is when all messages had been started."""
    entries = ledger.entries
    begun = {entry.id for entry in entries}
    parked = {entry.id for entry in entries if entry.what == "reject"}
    last_at = max((entry.at for entry in entries), default=time.time())
    # on a slow machine everything is late but nothing is lost, so a message is overdue only beyond the longest wait
    waited = max((entry.at - entry.due_at for entry in entries if entry.what == "began"), default=0.0)
    proof = audit(
        entries,
        expected={
            e.id: e.scheduled_at.timestamp() if e.scheduled_at else 0.0 if e.id in begun else started_at
            for e in envelopes
        },
        now=last_at,
        grace=OVERDUE_GRACE_SECONDS + 2 * waited,
        is_left_out=parked.__contains__,
    )

    return {
        "messages": proof.messages,
        "cycles": proof.cycles,
        "early": proof.early,
        "lost": proof.lost,
        "duplicated": proof.duplicated,
        "lateness_p50_s": round(quantile(proof.lateness, 0.5), 3),
        "lateness_p99_s": round(quantile(proof.lateness, 0.99), 3),
        "parked": len(parked),
    }


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./run demo", description="Watch real messages come back.")
    add = parser.add_argument
    default = f"{messages.PACKED_MESSAGES:,}"
    add("--seconds", type=float, default=60.0, help="how long to run once all messages are started (60)")
    add("--report", type=Path, help="write the report there as JSON")
    add("--messages", type=int, help=f"how many (every feed there is; with --encoding pack {default})")
    add(
        "--encoding",
        choices=("solo", "pack"),
        default="solo",
        help=f"solo: a workflow each, its handler visits a site on loopback; pack: {messages.PER_PACK} messages in a "
        f"workflow, {messages.CYCLES_PER_SECOND:,.0f} cycles a second and more, for which the handler only waits "
        f"{messages.IO_SECONDS * 1000:.0f} ms (solo)",
    )
    add(
        "--kafka",
        action="store_true",
        help="send the messages to a topic of a broker of the demonstration's own; "
        "the bridge brings them to the server",
    )
    args = parser.parse_args(arguments)
    maximum = messages.PACKED_MESSAGES_MAX if args.encoding == "pack" else len(messages.read_feeds())
    if not 0 < args.seconds <= 86_400:
        parser.error(f"--seconds: is {args.seconds:g}; give more than 0 and at most 86400")
    if args.report is not None and not args.report.parent.is_dir():
        parser.error(f"--report: there is no folder {args.report.parent}; make it first")

    if args.messages is not None and not 1 <= args.messages <= maximum:
        more = "" if args.encoding == "pack" else "; for more add --encoding pack"
        parser.error(f"--messages: is {args.messages}; give 1 to {maximum}{more}")

    return args


def main() -> int:
    """Run the demonstration and print its report; gives exit code 1 if a promise was broken."""
    args = parse_options(sys.argv[1:])
    console = Console(stderr=True)
    try:
        report = asyncio.run(run_demo(args, console))
    except DormiceError as exc:
        console.print(f"demo: {exc}")
        return 2

    if report is None:
        console.print("demo: told to end before all messages were started")
        return INTERRUPTED

    text = json.dumps(report, indent=2)
    if args.report is not None:
        args.report.write_text(text + "\n")

    sys.stdout.write(text + "\n")
    return 1 if report["early"] or report["lost"] or report["duplicated"] else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
