"""The live board of the demonstration: what was started, and what the ledger says of it."""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.ledger import Entry, Ledger, quantile
from shared.messages.timespan import format_seconds

RATE_WINDOW_SECONDS = 5.0
LATENESS_KEPT = 2000
DRAW_SECONDS = 0.5
PRINT_SECONDS = 5.0


class Board:
    """Counts messages and the entries of their ledger, and shows the result on a console."""

    def __init__(self, console: Console, footer: str) -> None:
        self._console = console
        self._footer = footer
        self._activity = ""
        self._lanes: dict[str, str] = {}
        self._totals: Counter[str] = Counter()
        self._at_work: set[str] = set()
        self._parked: set[str] = set()
        self._due: dict[str, float] = {}
        self._recent: deque[float] = deque()
        self._lateness: deque[float] = deque(maxlen=LATENESS_KEPT)
        self._notes: Counter[str] = Counter()
        self._cycles = 0

    def announce(self, activity: str, *commands: str) -> None:
        """Say what happens until all messages are started, and with which commands one would do it by hand."""
        self._activity = activity
        self._console.print(f"{activity} …", *commands, sep="\n")

    def add(self, messages: Iterable[tuple[str, str]]) -> None:
        """Count messages that were started, each given by its id and its lane; one that is known counts once."""
        for name, lane in messages:
            if name not in self._lanes:
                self._lanes[name] = lane
                self._totals[lane] += 1

    async def show(
        self, ledger: Ledger, seconds: float, starting: asyncio.Task[None], stopping: asyncio.Event
    ) -> float | None:
        """Draw the board until `seconds` after all messages were started, or until told to stop; gives when they were.

        Without a terminal, print a line every five seconds. None if it stops before all are started.
        """
        started_at = None
        offset = 0
        printed_at = time.time()

        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not stopping.is_set():
                if started_at is None and starting.done():
                    starting.result()
                    started_at = time.time()

                left = seconds if started_at is None else started_at + seconds - time.time()
                if left <= 0:
                    break

                entries, offset = ledger.read(offset)
                self._take(entries)
                status = self._activity if started_at is None else f"{format_seconds(left)} to go"

                if self._console.is_terminal:
                    live.update(self._draw(status), refresh=True)
                elif time.time() - printed_at >= PRINT_SECONDS:
                    printed_at = time.time()
                    self._console.print(f"{self._cycles:,} cycles, {status}")

                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), min(DRAW_SECONDS, left))

        if started_at is not None:
            self._console.print(self._draw("at the end"), crop=False)  # its commands are to be copied whole
        return started_at

    def _take(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.what == "began":
                self.add([(entry.id, entry.lane)])
                self._at_work.add(entry.id)
                self._due.pop(entry.id, None)
                self._lateness.append(max(0.0, entry.at - entry.due_at))
                continue

            self._at_work.discard(entry.id)
            if entry.what == "reject":
                self._parked.add(entry.id)

            if entry.what == "again":
                self._cycles += 1
                self._recent.append(entry.at)
                self._notes[entry.note.partition(",")[0]] += 1
                self._due[entry.id] = entry.at + (entry.asked or 0)

    def _draw(self, status: str) -> RenderableType:
        table = Table(title=f"dormice, {status}", title_justify="left")
        for name in ("lane", "messages", "asleep", "running", "parked"):
            justify = "left" if name == "lane" else "right"
            table.add_column(name, justify=justify)
        for lane in ("short", "medium", "long"):
            total = self._totals[lane]
            running, parked = (
                sum(self._lanes[name] == lane for name in names) for names in (self._at_work, self._parked)
            )
            table.add_row(lane, *(f"{n:,}" for n in (total, total - running - parked, running, parked)))

        return Group(table, self._facts(time.time()), Text(self._footer, no_wrap=True, overflow="ignore"))

    def _facts(self, now: float) -> Table:
        while self._recent and self._recent[0] < now - RATE_WINDOW_SECONDS:
            self._recent.popleft()
        next_due = min(self._due.values(), default=now) - now
        facts = Table.grid(padding=(0, 2))
        facts.add_row("cycles", f"{self._cycles:,}", "cycles/s", f"{len(self._recent) / RATE_WINDOW_SECONDS:.1f}")
        facts.add_row("changed", f"{self._notes['changed']:,}", "unchanged", f"{self._notes['unchanged']:,}")
        facts.add_row("lateness p50", self._late(0.5), "p99", self._late(0.99))

        when = f"in {format_seconds(next_due)}" if next_due > 0 else "now"
        facts.add_row("next due", when)
        return facts

    def _late(self, share: float) -> str:
        return format_seconds(quantile(self._lateness, share)) if self._lateness else "-"
