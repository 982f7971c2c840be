"""The live board of the demonstration, drawn from the ledger alone."""

import time
from collections import Counter, deque

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from examples.ledger import Entry
from shared.messages.timespan import format_seconds

RATE_WINDOW_SECONDS = 5.0
LATENESS_KEPT = 2000


class Board:
    """Counts the entries of the ledger and draws the result."""

    def __init__(self, messages: dict[str, str], footer: str) -> None:
        """Make a board from each message's lane by id, and the text under the table."""
        self._lanes = messages
        self._totals = Counter(messages.values())
        self._footer = footer
        self._at_work: set[str] = set()
        self._parked: set[str] = set()
        self._due: dict[str, float] = {}
        self._recent: deque[float] = deque()
        self._lateness: deque[float] = deque(maxlen=LATENESS_KEPT)
        self._notes: Counter[str] = Counter()
        self.cycles = 0

    def take(self, entries: list[Entry]) -> None:
        """Count new ledger entries."""
        for entry in entries:
            if entry.what == "began":
                self._at_work.add(entry.id)
                self._due.pop(entry.id, None)
                self._lateness.append(max(0.0, entry.at - entry.due_at))
                continue
            self._at_work.discard(entry.id)
            if entry.what == "reject":
                self._parked.add(entry.id)
            if entry.what == "again":
                self.cycles += 1
                self._recent.append(entry.at)
                self._notes[entry.note.partition(",")[0]] += 1
                self._due[entry.id] = entry.at + (entry.asked or 0)

    def draw(self, remaining: float) -> RenderableType:
        """Draw the present state of the board."""
        now = time.time()
        while self._recent and self._recent[0] < now - RATE_WINDOW_SECONDS:
            self._recent.popleft()
        table = Table(title=f"dormice, {format_seconds(remaining)} to go", title_justify="left")
        for name in ("lane", "messages", "asleep", "running", "parked"):
            table.add_column(name, justify="left" if name == "lane" else "right")
        for lane in ("short", "medium", "long"):
            table.add_row(lane, *(f"{n:,}" for n in self._count(lane)))
        return Group(table, self._facts(now), Text(self._footer, no_wrap=True, overflow="ignore"))

    def _count(self, lane: str) -> tuple[int, int, int, int]:
        total = self._totals[lane]
        running = sum(self._lanes[name] == lane for name in self._at_work)
        parked = sum(self._lanes[name] == lane for name in self._parked)
        return total, total - running - parked, running, parked

    def _facts(self, now: float) -> Table:
        facts = Table.grid(padding=(0, 2))
        next_due = min(self._due.values(), default=now) - now
        facts.add_row("cycles", f"{self.cycles:,}", "cycles/s", f"{len(self._recent) / RATE_WINDOW_SECONDS:.1f}")
        facts.add_row("changed", f"{self._notes['changed']:,}", "unchanged", f"{self._notes['unchanged']:,}")
        facts.add_row("lateness p50", self._late(0.5), "p99", self._late(0.99))
        facts.add_row("next due", f"in {format_seconds(next_due)}" if next_due > 0 else "now")
        return facts

    def _late(self, share: float) -> str:
        ordered = sorted(self._lateness)
        return format_seconds(ordered[int(share * (len(ordered) - 1))]) if ordered else "-"
