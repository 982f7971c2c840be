"""`./run demo`: real feed addresses become messages that visit a loopback site, sleep, and come back.

Everything is real but the pages: Temporal's embedded server, a worker process, the built-in http handler. With
`--encoding pack` there are many more messages, packed, whose handler waits a few milliseconds instead of visiting. What
the board and the report say is computed from a ledger that the handlers keep.
"""

import argparse
import asyncio
import contextlib
import csv
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from examples.board import Board
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
from shared.envelope import ID_MAX_BYTES, Envelope
from shared.errors import DormiceError
from shared.placement import unit_hash, workflow_id
from shared.settings import Settings
from starter.bulk import BulkStarter
from starter.embedded import EmbeddedOptions, EmbeddedServer, end_on_leash, find_free_port, run_embedded, start_on_leash
from starter.receipts import StartOutcome

FEEDS = Path(__file__).with_name("feeds.csv")
FIRST_RUNS_SPREAD_SECONDS = 8.0
DRAIN_SECONDS = 8.0
OVERDUE_GRACE_SECONDS = 15.0
LANE_SHARES = (("long", 0.02), ("medium", 0.10), ("short", 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line asked for; `messages` None means every feed of the file."""

    seconds: float
    report: Path | None
    messages: int | None = None
    is_packed: bool = False


def read_feeds() -> list[str]:
    """Give the addresses of the feeds, each once, in the order of the file."""
    with FEEDS.open(newline="", encoding="utf-8") as file:
        urls = dict.fromkeys(row["url"].strip() for row in csv.DictReader(file))
    return [url for url in urls if 0 < len(url.encode()) <= ID_MAX_BYTES]


def make_envelopes(urls: list[str], site: str, now: float) -> list[Envelope]:
    """Turn each address into a message whose page is on our site; first runs are spread over a few seconds."""
    envelopes: list[Envelope] = []
    for number, url in enumerate(urls):
        lane = next(lane for lane, share in LANE_SHARES if unit_hash(f"lane {url}") < share)
        first = now + unit_hash(url) * FIRST_RUNS_SPREAD_SECONDS
        envelopes.append(
            Envelope(
                kind="feed",
                id=url,
                lane=lane,
                scheduled_at=datetime.fromtimestamp(first, UTC),
                payload={"url": f"{site}/{lane}/{number}", "interval": 6, "min": 3, "max": 30},
            )
        )
    return envelopes


async def run_demo(options: DemoOptions, console: Console) -> dict[str, Any]:
    """Run the demonstration and give its report; ends after the time, or at SIGINT or SIGTERM."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with tempfile.TemporaryDirectory(prefix="dormice-demo-") as folder, run_site() as site:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        embedded = EmbeddedOptions(data=Path(folder) / "data", port=find_free_port(), ui_port=find_free_port())
        console.print("starting Temporal's embedded server …")
        async with run_embedded(embedded) as server, working(server, folder):
            if options.is_packed:
                envelopes = make_packed_envelopes(options.messages or MESSAGES, time.time())
            else:
                envelopes = make_envelopes(read_feeds()[: options.messages], site, time.time())
            console.print(f"starting {len(envelopes):,} messages …")
            await start_all(server, envelopes)
            await show_board(options, console, server, ledger, envelopes, stopping)
        return make_report(ledger, envelopes)


@contextlib.asynccontextmanager
async def working(server: EmbeddedServer, folder: str) -> AsyncGenerator[None]:
    """Run a worker process for all lanes, with the demonstration's handler, for the length of the block."""
    environment = {
        **os.environ,
        "TEMPORAL_ADDRESS": server.address,
        "TEMPORAL_NAMESPACE": "default",
        "DORMICE_HANDLERS": "examples.handlers",
        "DORMICE_HTTP_ALLOW_PRIVATE": "true",
        LEDGER_VARIABLE: f"{folder}/ledger.jsonl",
    }
    command = [sys.executable, "-m", "worker", "--processes", "1", "--drain-seconds", "5"]
    with Path(folder, "worker.log").open("wb") as log:  # noqa: ASYNC230 — once, before anything runs
        worker = await start_on_leash(command, log.fileno(), environment)
        try:
            yield
        finally:
            await end_on_leash(worker, DRAIN_SECONDS)


async def start_all(server: EmbeddedServer, envelopes: Sequence[Envelope]) -> None:
    """Start every message."""
    settings = Settings(pack_room=len(envelopes) + 1)
    starter = BulkStarter(await server.connect(), settings, encodings={KIND: choose_pack(len(envelopes))})
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        if receipt.outcome is not StartOutcome.STARTED:
            raise RuntimeError(f"{receipt.workflow_id} was not started: {receipt.outcome.value} {receipt.reason}")


async def show_board(  # noqa: PLR0917 — every part of the demonstration meets here
    options: DemoOptions,
    console: Console,
    server: EmbeddedServer,
    ledger: Ledger,
    envelopes: Sequence[Envelope],
    stopping: asyncio.Event,
) -> None:
    """Draw the board twice a second until the time is over; without a terminal, a line every five seconds."""
    board = Board({e.id: e.lane or "" for e in envelopes}, make_footer(server, envelopes[0]))
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


def make_footer(server: EmbeddedServer, example: Envelope) -> str:
    """Write what to try from a second terminal."""
    prefix = f"  TEMPORAL_ADDRESS={server.address} .venv/bin/dormice"
    name = workflow_id(example.kind, example.id)
    return (
        f"Web UI: {server.ui_url}\n"
        "Try from a second terminal:\n"
        f"{prefix} list --kind {example.kind} --limit 5\n"
        f"{prefix} show '{name}'\n"
        f"{prefix} now '{name}'"
    )


def make_report(ledger: Ledger, envelopes: Sequence[Envelope]) -> dict[str, Any]:
    """Compute the report from the ledger and from nothing else."""
    entries = ledger.entries
    parked = {entry.id for entry in entries if entry.what == "reject"}
    last_at = max((entry.at for entry in entries), default=time.time())
    # a machine that is behind with everything has lost nothing: overdue counts only beyond what the others had to wait
    waited = max((entry.at - entry.due_at for entry in entries if entry.what == "began"), default=0.0)
    proof: Audit = audit(
        entries,
        expected={e.id: e.scheduled_at.timestamp() if e.scheduled_at else 0.0 for e in envelopes},
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
    )


def main() -> int:
    """Run and report; 1 when a promise was broken."""
    options, console = parse_options(sys.argv[1:]), Console(stderr=True)
    try:
        report = asyncio.run(run_demo(options, console))
    except DormiceError as exc:
        console.print(f"demo: {exc}")
        return 2
    text = json.dumps(report, indent=2)
    if options.report is not None:
        options.report.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 1 if report["early"] or report["lost"] or report["duplicated"] else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
