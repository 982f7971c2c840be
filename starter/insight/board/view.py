"""The board as a terminal shows it: what is wrong first, then counts, lanes, what is due and closed gates."""

import time
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from activities.idle.due_index import SleepingWorkflow
from shared.messages.placement import pack_of
from shared.messages.timespan import format_moment, format_seconds
from starter.insight.board.status import ALL_KINDS, BoardStatus, DueSummary, write_count
from starter.local.terminal import clean, describe_distance, plural, shorten

STYLES = {"wrong": "bold red", "warning": "yellow", "parked": "yellow", "gone": "bold red", "gate": "yellow"}
WORD_WIDTH = 8
KIND_WIDTH = 30
NAME_WIDTH = 40
DUE_WIDTH = 4
NAME_MIN = 12
"""Columns that the names of a table have at least; with less, its rows are lists."""
GAP = 2
"""Columns between those of a table."""


def draw(status: BoardStatus, footer: str = "", *, is_complete: bool = True) -> RenderableType:
    """Draw the board, as wide as the console is."""
    parts: list[RenderableType] = [_draw_title(status)]
    if status.fault:
        parts.append(Text(clean(status.describe_fault()), style="bold red"))

    parts += _draw_troubles(status, is_complete=is_complete)
    if status.counts:
        parts += [Text(), _draw_counts(status)]
        if about := status.describe_about():
            parts.append(Text(about, style="dim"))

    parts += [Text(), _draw_lanes(status)]
    parts += _draw_due(status.due)
    if footer:
        parts += [Text(), Text(footer, style="dim")]
    return Group(*parts)


def _draw_title(status: BoardStatus) -> RenderableType:
    title = Table.grid(expand=True, padding=(0, 1))
    title.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    title.add_column(no_wrap=True, justify="right")
    title.add_row(Text(f"dormice at {clean(status.server)}", style="bold"), format_moment(status.at)[11:])
    return title


def _draw_troubles(status: BoardStatus, *, is_complete: bool) -> Iterator[RenderableType]:
    """Draw a line for each thing that is wrong, its kind in front, wrapped beside it."""
    lines = list(_find_troubles(status))
    if not lines:
        yield Text("nothing is wrong", style="green") if is_complete else Text("reading …", style="dim")
        return
    yield _draw_lines(lines, WORD_WIDTH, 1)


def _draw_lines(lines: Iterable[tuple[str, str]], width: int, gap: int) -> RenderableType:
    """Draw lines with a word in front of each, beside which its text is wrapped."""
    grid = Table.grid(padding=(0, gap, 0, 0))
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(overflow="fold")
    for word, text in lines:
        grid.add_row(Text(word, style=STYLES.get(word, "")), Text(clean(text)))
    return grid


def _find_troubles(status: BoardStatus) -> Iterator[tuple[str, str]]:
    for finding in status.findings:
        yield finding.level.value, f"{finding.about} {finding.seen}".lstrip()
        if finding.remedy:
            yield "", f"do: {finding.remedy}"

    for worker, reported_at in status.gone.items():
        silent = format_seconds(time.time() - reported_at)
        yield "gone", f"worker {worker}, not heard of for {silent}; it did not stop in good order"

    for reason, count in status.parked:
        yield "parked", f"{plural(count, 'message')}: {reason or 'no reason is known'}"

    for gate, closing in sorted(status.gates.items()):
        opens = "until it is opened" if closing.lasts_for_good else f"until {format_moment(closing.opens_at)}"
        why = f" ({closing.reason})" if closing.reason else ""
        yield "gate", f"{gate} is closed {opens}{why}"


def _draw_counts(status: BoardStatus) -> RenderableType:
    states = list(status.counts.get(ALL_KINDS, {}))
    table = _FittingTable(["KIND", *(state.upper() for state in states)])
    for kind, counts in status.counts.items():
        if kind != ALL_KINDS or len(status.counts) != 2:  # of one kind, the sum says nothing new
            cells = [
                _write_cell(state, write_count(counts[state]), is_any=counts[state].number > 0) for state in states
            ]
            table.add(shorten(clean(kind), KIND_WIDTH), cells)
    return table


def _write_cell(state: str, text: str, *, is_any: bool) -> Text:
    style = STYLES.get(state, "") if is_any else "dim"
    return Text(text, style=style)


def _draw_lanes(status: BoardStatus) -> RenderableType:
    table = _FittingTable(["LANE", "WORKERS", "WAITING", "OLDEST", "CALLS/S"])
    for lane, each in status.lanes.items():
        rate = "-" if each.calls_per_second is None else f"{each.calls_per_second:,.1f}"
        waits = format_seconds(each.waits) if each.waiting else "-"
        cells = [f"{each.workers:,}", f"{each.waiting:,}", waits, rate]
        table.add(lane, [Text(cell) for cell in cells])
    return table


def _draw_due(due: DueSummary) -> Iterator[RenderableType]:
    if not due.counts:
        return
    counts = ", ".join(f"{count:,} {_write_stretch(name)}" for name, count in due.counts.items() if count)
    held = f"; {plural(due.gated, 'message')} held at closed gates" if due.gated else ""
    lines = [("due", f"{counts or 'nothing'}{held}")]
    if due.first:
        first = ", ".join(f"{_name(each)} {describe_distance(each.due_at)}" for each in due.first)
        lines.append(("next", first))

    yield Text()
    yield _draw_lines(lines, DUE_WIDTH, GAP)


def _write_stretch(name: str) -> str:
    return name if name == "later" else f"in {name}"


def _name(workflow: SleepingWorkflow) -> str:
    if not workflow.is_pack:
        return shorten(workflow.workflow_id, NAME_WIDTH)
    kind, index = pack_of(workflow.workflow_id)
    return f"{kind} (pack {index})"


class _FittingTable:
    """A table of names with numbers; where it has no room for them, each row is a list below its name."""

    def __init__(self, header: Sequence[str]) -> None:
        self._header = header
        self._rows: list[tuple[str, Sequence[Text]]] = []

    def add(self, name: str, cells: Sequence[Text]) -> None:
        """Add a row."""
        self._rows.append((name, cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it for the width that there is."""
        names, *columns = zip(self._header, *((name, *cells) for name, cells in self._rows), strict=True)
        numbers = sum(GAP + max(map(_measure, column)) for column in columns)
        needed = min(NAME_MIN, max(map(_measure, names)))
        if numbers + needed <= options.max_width:
            yield self._draw_table()
        else:
            yield from self._draw_lists()

    def _draw_table(self) -> RenderableType:
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
        table.add_column(self._header[0], overflow="fold")  # the only one that is wrapped, so that no number is cut
        for name in self._header[1:]:
            table.add_column(name, justify="right", no_wrap=True)
        for name, cells in self._rows:
            table.add_row(Text(name), *cells)
        return table

    def _draw_lists(self) -> Iterator[RenderableType]:
        titles = [name.lower() for name in self._header[1:]]
        for name, cells in self._rows:
            yield Text(name, overflow="fold")
            parts = [Text.assemble(f"{title} ", cell) for title, cell in zip(titles, cells, strict=True)]
            yield Padding(Text(", ").join(parts), (0, 0, 0, GAP))


def _measure(cell: Text | str) -> int:
    return cell_len(str(cell))


def describe_interval(seconds: float) -> str:
    """Say how often the board is read."""
    return f"read every {format_seconds(seconds)}, what is costly less often; q or Ctrl-C ends"
