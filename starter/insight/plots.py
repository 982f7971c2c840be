"""Plots: PNG images of due messages and of outcomes."""

import importlib
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Any

from shared.messages.timespan import format_seconds

COLOUR = "#2b6a99"
ACCENT = "#c8553d"
DPI = 110
FEW_PER_SECOND = 20
FEW_BUCKETS = 12
"""With fewer, each bar has its number, and the axis is as long as with so many."""


def draw_due_curve(buckets: Sequence[tuple[datetime, int]], width_seconds: int) -> bytes:
    """Draw how many messages have their first run in each interval, and the running total."""
    return render(plot_due_curve(buckets, width_seconds))


def plot_due_curve(buckets: Sequence[tuple[datetime, int]], width_seconds: int) -> Any:
    """Make the figure that `draw_due_curve` draws."""
    figure = make_figure(height=3.2)
    title = f"first runs, per {format_seconds(width_seconds)}"
    if len(buckets) == 1:
        title = f"first runs: all within {format_seconds(width_seconds)}, from {buckets[0][0]:%Y-%m-%d %H:%M:%S} UTC on"
    axes = add_axes(figure, title, "messages")
    if buckets:
        _draw_buckets(axes, buckets, timedelta(seconds=width_seconds))
    return figure


def _draw_buckets(axes: Any, buckets: Sequence[tuple[datetime, int]], width: timedelta) -> None:
    starts = [start for start, _ in buckets]
    counts = [count for _, count in buckets]
    bars = axes.bar(starts, counts, width=width, align="edge", color=COLOUR)
    if len(buckets) < FEW_BUCKETS:
        axes.bar_label(bars, labels=[f"{count:,}" if count else "" for count in counts], fontsize=8)

    ends = [starts[0], *(start + width for start in starts)]
    if len(buckets) > 1:
        total_axes = axes.twinx()
        total_axes.plot(ends, [0, *accumulate(counts)], color=ACCENT, linewidth=1.5)
        total_axes.set_ylabel("so far", color=ACCENT)
        total_axes.set_ylim(bottom=0)
        total_axes.yaxis.set_major_formatter(axes.yaxis.get_major_formatter())
    _show_moments(axes, starts[0], ends[-1], width)


def _show_moments(axes: Any, begin: datetime, end: datetime, width: timedelta) -> None:
    """Label an axis with moments; what is due at once is shown within some time in which nothing is."""
    missing = max(0, FEW_BUCKETS - (end - begin) // width)
    margin = missing * width / 2
    axes.set_xlim(begin - margin, end + margin)

    dates = importlib.import_module("matplotlib.dates")
    locator = dates.AutoDateLocator(minticks=4, maxticks=9)
    axes.xaxis.set_major_locator(locator)
    formatter = dates.ConciseDateFormatter(locator, formats=["%Y", "%b", "%d", "%H:%M", "%H:%M", "%H:%M:%S"])
    axes.xaxis.set_major_formatter(formatter)
    axes.set_xlabel("UTC")


def draw_forecast(
    edges: Sequence[float], due: Mapping[str, Sequence[int]], capacity: Mapping[str, float | None]
) -> bytes:
    """Draw what is due a second in each interval, by group, and the capacity of a lane of that name as a line."""
    moments = [datetime.fromtimestamp(edge, UTC) for edge in edges]
    lengths = [end - begin for begin, end in pairwise(edges)]
    shown = {name: counts for name, counts in due.items() if any(counts)} or {"all": [0] * len(lengths)}
    figure = make_figure(height=0.6 + 2.2 * len(shown))

    for number, (name, counts) in enumerate(shown.items(), start=1):
        rates = [count / length for count, length in zip(counts, lengths, strict=True)]
        number_format = "{x:,.0f}" if max([*rates, capacity.get(name) or 0]) >= FEW_PER_SECOND else "{x:,.2f}"
        title = f"{name}: due, {sum(counts):,} in all"
        axes = add_axes(figure, title, "messages a second", number_format, (len(shown), 1, number))
        axes.bar(moments[:-1], rates, width=[timedelta(seconds=n) for n in lengths], align="edge", color=COLOUR)

        if per_second := capacity.get(name):
            axes.axhline(per_second, color=ACCENT, linewidth=1.5)
            place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
            axes.annotate(f"can do {per_second:,.4g}", (1, per_second), **place, color=ACCENT, fontsize=8)

        axes.set_ylim(bottom=0)
        axes.set_xlabel("UTC")

    figure.autofmt_xdate(rotation=30)
    return render(figure)


def draw_bars(title: str, unit: str, bars: Sequence[tuple[str, int]]) -> bytes:
    """Draw counts side by side, each with its label below and its number above."""
    figure = make_figure(height=3.2)
    axes = add_axes(figure, title, unit)
    drawn = axes.bar([label for label, _ in bars], [count for _, count in bars], color=COLOUR)
    axes.bar_label(drawn, labels=[f"{count:,}" if count else "" for _, count in bars], fontsize=8)
    axes.tick_params(axis="x", rotation=30)
    return render(figure)


def make_figure(height: float) -> Any:
    """Make a figure of a page's width; the height is in inches."""
    # not pyplot, which keeps every figure of the process and needs a display
    return importlib.import_module("matplotlib.figure").Figure(figsize=(8, height), layout="constrained")


def add_axes(
    figure: Any, title: str, unit: str, number: str = "{x:,.0f}", place: tuple[int, int, int] = (1, 1, 1)
) -> Any:
    """Add axes with a title above, a unit beside and numbers of a format; `place` is as matplotlib counts subplots."""
    axes = figure.add_subplot(*place)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").StrMethodFormatter(number))
    return axes


def render(figure: Any) -> bytes:
    """Give a figure as PNG."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    return drawn.getvalue()
