"""`./run demo`: real feed addresses become messages that visit a site on loopback, sleep, and come back.

Only the pages are not real: Temporal's embedded server, a worker process and the built-in http handler are. With
`--encoding pack` there are many more messages, in packs, and their handler waits a few milliseconds instead of visiting
a page. Spark prepares and starts the feeds; packed messages are started directly; with `--kafka`, both come through a
topic of a real broker and the real bridge. The board and the report are computed from a ledger that the handlers write.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from examples.board import Board
from examples.bridged import TOPIC, Gate, open_gate
from examples.ledger import LEDGER_VARIABLE, Audit, Ledger, audit
from examples.packed import (
    CYCLES_PER_SECOND,
    IO_SECONDS,
    KIND,
    MESSAGES,
    MESSAGES_MAX,
    PER_PACK,
    choose_pack,
    make_packed_envelopes,
)
from examples.site import run_site
from examples.sparked import OWN_FILE, start_with_spark
from shared.errors import DormiceError
from shared.messages.envelope import ID_MAX_BYTES, Envelope
from shared.messages.placement import unit_hash, workflow_id
from shared.settings import Settings
from starter.cli.exit_codes import INTERRUPTED
from starter.cli.interruption import call_at_signals
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, find_free_port, run_embedded
from starter.local.kafka.broker import check_extras
from starter.local.supervised_process import start_supervised, stop_supervised
from starter.starting.bulk import BulkStarter
from starter.starting.layouts import Layouts
from starter.starting.receipts import StartOutcome

FEEDS = Path(__file__).with_name("feeds.csv")
DRAIN_SECONDS = 8.0
OVERDUE_GRACE_SECONDS = 15.0
LANE_SHARES = (("long", 0.02), ("medium", 0.10), ("short", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of the command line; `messages` None means every feed of the file."""

    seconds: float
    report: Path | None
    messages: int | None = None
    is_packed: bool = False
    is_kafka: bool = False


def read_feeds() -> list[str]:
    """Give the addresses of the feeds, each once, in the order of the file."""
    with FEEDS.open(newline="", encoding="utf-8") as file:
        urls = dict.fromkeys(row["url"].strip() for row in csv.DictReader(file))
    return [url for url in urls if 0 < len(url.encode()) <= ID_MAX_BYTES]


def make_envelopes(urls: list[str], site: str) -> list[Envelope]:
    """Turn each address into a message whose page is on our site, due as soon as it is started."""
    envelopes: list[Envelope] = []
    for number, url in enumerate(urls):
        lane = next(lane for lane, share in LANE_SHARES if unit_hash(f"lane {url}") < share)
        envelopes.append(
            Envelope(
                kind="feed",
                id=url,
                lane=lane,
                payload={"url": f"{site}/{lane}/{number}", "interval": 6, "min": 3, "max": 30},
            )
        )
    return envelopes


async def run_demo(options: DemoOptions, console: Console) -> dict[str, Any] | None:
    """Run the demonstration until its time is over or a signal comes, and give its report.

    There is no report if the signal comes before all messages were started.
    """
    stopping = asyncio.Event()
    call_at_signals(stopping.set)
    if options.is_kafka:
        check_extras()
    with tempfile.TemporaryDirectory(prefix="dormice-demo-") as folder, run_site() as site:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        embedded = EmbeddedOptions(data=Path(folder) / "data", port=find_free_port(), ui_port=find_free_port())
        console.print(f"starting Temporal's embedded server{' and a Kafka broker' if options.is_kafka else ''} …")
        async with run_embedded(embedded) as server, working(server, folder), gate_of(options, server, folder) as gate:
            if options.is_packed:
                envelopes = make_packed_envelopes(options.messages or MESSAGES, time.time())
            else:
                envelopes = make_envelopes(read_feeds()[: options.messages], site)
            console.print(f"starting {len(envelopes):,} messages …")
            if options.is_packed or gate is not None:
                await start_all(server, envelopes, gate)
            elif not await start_with_spark(folder, make_environment(server, folder), envelopes, console, stopping):
                return None
            started_at = time.time()
            board = Board({e.id: e.lane or "" for e in envelopes}, make_footer(server, envelopes[0], gate))
            await show_board(options, console, ledger, board, stopping)
        return make_report(ledger, envelopes, started_at)


def make_environment(server: EmbeddedServer, folder: str) -> dict[str, str]:
    """Give the environment of the processes that belong to the demonstration."""
    return {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": "default",
        "DORMICE_HANDLERS": "examples.handlers",
        "DORMICE_HTTP_ALLOW_PRIVATE": "true",
        LEDGER_VARIABLE: f"{folder}/ledger.jsonl",
    }


@contextlib.asynccontextmanager
async def gate_of(options: DemoOptions, server: EmbeddedServer, folder: str) -> AsyncGenerator[Gate | None]:
    """Run broker and bridge for a `with` block if the options say so; otherwise give None."""
    if not options.is_kafka:
        yield None
        return
    async with open_gate(folder, make_environment(server, folder)) as gate:
        yield gate


@contextlib.asynccontextmanager
async def working(server: EmbeddedServer, folder: str) -> AsyncGenerator[None]:
    """Run a worker process for all lanes, with the demonstration's handlers, for a `with` block."""
    command = [sys.executable, "-m", "worker", "--processes", "1", "--drain-seconds", "5"]
    with Path(folder, "worker.log").open("wb") as log:  # noqa: ASYNC230 — once, before anything runs
        worker = await start_supervised(command, log.fileno(), make_environment(server, folder))
        try:
            yield
        finally:
            await stop_supervised(worker, DRAIN_SECONDS)


async def start_all(server: EmbeddedServer, envelopes: Sequence[Envelope], gate: Gate | None) -> None:
    """Start every message, through Kafka if there is a gate, or else directly."""
    settings, pack = Settings(pack_room=len(envelopes) + 1), {KIND: choose_pack(len(envelopes))}
    client = await server.connect()
    if gate is not None:
        if envelopes[0].kind == KIND:
            # the bridge reads on the server how the kind is packed
            await Layouts(client, settings, pack).settle(KIND, "short")
        await gate.start_all(envelopes)
        return
    starter = BulkStarter(client, settings, encodings=pack)
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        if receipt.outcome is not StartOutcome.STARTED:
            raise RuntimeError(f"{receipt.workflow_id} was not started: {receipt.outcome.value} {receipt.reason}")


async def show_board(
    options: DemoOptions, console: Console, ledger: Ledger, board: Board, stopping: asyncio.Event
) -> None:
    """Draw the board twice a second until the time is over; without a terminal, print a line every five seconds."""
    ends_at, offset, printed_at = time.monotonic() + options.seconds, 0, time.monotonic()
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        while (remaining := ends_at - time.monotonic()) > 0 and not stopping.is_set():
            entries, offset = ledger.read(offset)
            board.take(entries)
            if console.is_terminal:
                screen.update(board.draw(remaining), refresh=True)
            elif time.monotonic() - printed_at >= 5:
                printed_at = time.monotonic()
                console.print(f"{board.cycles:,} cycles, {remaining:.0f} s to go")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), min(0.5, remaining))
    console.print(board.draw(0))


def make_footer(server: EmbeddedServer, example: Envelope, gate: Gate | None) -> str:
    """Write the text under the board: where the messages come from, and what to try from a second terminal."""
    prefix = f"  TEMPORAL_ADDRESS={server.address} .venv/bin/dormice"
    name = workflow_id(example.kind, example.id)
    source = "" if gate is None else f"Kafka: topic {TOPIC} of the broker at {gate.address}\n"
    return (
        f"{source}Web UI: {server.ui_url}\n"
        "Try from a second terminal:\n"
        f"{prefix} list --kind {example.kind} --limit 5\n"
        f"{prefix} show '{name}'\n"
        f"{prefix} now '{name}'\n"
        f"{OWN_FILE}"
    ).rstrip()


def make_report(ledger: Ledger, envelopes: Sequence[Envelope], started_at: float) -> dict[str, Any]:
    """Compute the report from the ledger alone; `started_at` is when all messages had been started."""
    entries = ledger.entries
    begun = {entry.id for entry in entries}
    parked = {entry.id for entry in entries if entry.what == "reject"}
    last_at = max((entry.at for entry in entries), default=time.time())
    # on a slow machine everything is late but nothing is lost, so a message is overdue only beyond the longest wait
    waited = max((entry.at - entry.due_at for entry in entries if entry.what == "began"), default=0.0)
    proof: Audit = audit(
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
        "lateness_p50_s": round(proof.lateness_at(0.5), 3),
        "lateness_p99_s": round(proof.lateness_at(0.99), 3),
        "parked": len(parked),
    }


def parse_options(arguments: Sequence[str]) -> DemoOptions:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./run demo", description="Watch real messages come back.")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to run once all messages are started (60)"
    )
    parser.add_argument("--report", type=Path, help="write the report there as JSON")
    parser.add_argument(
        "--messages", type=int, help=f"how many (every feed there is; with --encoding pack {MESSAGES:,})"
    )
    parser.add_argument(
        "--encoding",
        choices=("solo", "pack"),
        default="solo",
        help=f"solo: a workflow each, its handler visits a site on loopback; pack: {PER_PACK} messages in a workflow, "
        f"{CYCLES_PER_SECOND:,.0f} cycles a second and more, for which the handler only waits "
        f"{IO_SECONDS * 1000:.0f} ms (solo)",
    )
    parser.add_argument(
        "--kafka",
        action="store_true",
        help="send the messages to a topic of a broker of the demonstration's own; "
        "the bridge brings them to the server",
    )
    parsed = parser.parse_args(arguments)
    most = MESSAGES_MAX if parsed.encoding == "pack" else len(read_feeds())
    if not 0 < parsed.seconds <= 86_400:
        parser.error(f"--seconds: is {parsed.seconds:g}; give more than 0 and at most 86400")
    if parsed.report is not None and not parsed.report.parent.is_dir():
        parser.error(f"--report: there is no folder {parsed.report.parent}; make it first")
    if parsed.messages is not None and not 1 <= parsed.messages <= most:
        more = "" if parsed.encoding == "pack" else "; for more add --encoding pack"
        parser.error(f"--messages: is {parsed.messages}; give 1 to {most}{more}")
    return DemoOptions(
        seconds=parsed.seconds,
        report=parsed.report,
        messages=parsed.messages,
        is_packed=parsed.encoding == "pack",
        is_kafka=parsed.kafka,
    )


def main() -> int:
    """Run the demonstration and print its report; gives exit code 1 if a promise was broken."""
    options, console = parse_options(sys.argv[1:]), Console(stderr=True)
    try:
        report = asyncio.run(run_demo(options, console))
    except DormiceError as exc:
        console.print(f"demo: {exc}")
        return 2
    if report is None:
        console.print("demo: told to end before all messages were started")
        return INTERRUPTED
    text = json.dumps(report, indent=2)
    if options.report is not None:
        options.report.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 1 if report["early"] or report["lost"] or report["duplicated"] else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
