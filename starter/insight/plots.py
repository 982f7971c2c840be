"""Plots: PNG images of due messages and of outcomes."""

import importlib
import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from shared.messages.timespan import format_seconds

COLOUR = "#2b6a99"
ACCENT = "#c8553d"
DPI = 110
FEW_PER_SECOND = 20


def draw_due_curve(buckets: Sequence[tuple[datetime, int]], width_seconds: int) -> bytes:
    """Draw how many messages have their first run in each interval, and the running total."""
    figure, axes = _make(f"first runs, per {format_seconds(width_seconds)}", "messages")
    if buckets:
        width = timedelta(seconds=width_seconds)
        axes.bar([start for start, _ in buckets], [n for _, n in buckets], width=width, align="edge", color=COLOUR)
        _draw_sum(axes, buckets, width)
        figure.autofmt_xdate(rotation=30)
    return _render(figure)


def draw_forecast(
    edges: Sequence[float], due: Mapping[str, Sequence[int]], capacity: Mapping[str, float | None]
) -> bytes:
    """Draw what is due a second in each interval, by group, and the capacity of a lane of that name as a line."""
    moments = [datetime.fromtimestamp(edge, UTC) for edge in edges]
    lengths = [end - begin for begin, end in pairwise(edges)]
    shown = {name: counts for name, counts in due.items() if any(counts)} or {"all": [0] * len(lengths)}
    figure: Any = _new_figure(height=0.6 + 2.2 * len(shown))
    for number, (name, counts) in enumerate(shown.items()):
        axes = figure.add_subplot(len(shown), 1, number + 1)
        rates = [count / length for count, length in zip(counts, lengths, strict=True)]
        number_format = "{x:,.0f}" if max([*rates, capacity.get(name) or 0]) >= FEW_PER_SECOND else "{x:,.2f}"
        _dress(axes, f"{name}: due, {sum(counts):,} in all", "messages a second", number_format)
        axes.bar(moments[:-1], rates, width=[timedelta(seconds=n) for n in lengths], align="edge", color=COLOUR)
        if per_second := capacity.get(name):
            axes.axhline(per_second, color=ACCENT, linewidth=1.5)
            axes.annotate(
                f"can do {per_second:,.4g}",
                (1, per_second),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                color=ACCENT,
                fontsize=8,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("UTC")
    figure.autofmt_xdate(rotation=30)
    return _render(figure)


def _draw_sum(axes: Any, buckets: Sequence[tuple[datetime, int]], width: timedelta) -> None:
    so_far, ends, sums = 0, [buckets[0][0]], [0]
    for start, count in buckets:
        so_far += count
        ends.append(start + width)
        sums.append(so_far)
    beside = axes.twinx()
    beside.plot(ends, sums, color=ACCENT, linewidth=1.5)
    beside.set_ylabel("so far", color=ACCENT)
    beside.set_ylim(bottom=0)


def draw_bars(title: str, unit: str, bars: Sequence[tuple[str, int]]) -> bytes:
    """Draw counts side by side, each with its label below and its number above."""
    figure, axes = _make(title, unit)
    drawn = axes.bar([label for label, _ in bars], [count for _, count in bars], color=COLOUR)
    axes.bar_label(drawn, labels=[f"{count:,}" if count else "" for _, count in bars], fontsize=8)
    axes.tick_params(axis="x", rotation=30)
    return _render(figure)


def _make(title: str, unit: str) -> tuple[Any, Any]:
    figure = _new_figure(height=3.2)
    axes = figure.add_subplot()
    _dress(axes, title, unit)
    return figure, axes


def _new_figure(height: float) -> Any:
    # not pyplot, which keeps every figure of the process and needs a display
    return importlib.import_module("matplotlib.figure").Figure(figsize=(8, height), layout="constrained")


def _dress(axes: Any, title: str, unit: str, number: str = "{x:,.0f}") -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").StrMethodFormatter(number))


def _render(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    return drawn.getvalue()
