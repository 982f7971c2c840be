"""Plots: what a person sees at a glance of a manifest and of what became of it, as PNG."""

import importlib
import io
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from shared.timespan import format_seconds

COLOUR = "#2b6a99"
ACCENT = "#c8553d"
DPI = 110


def draw_due_curve(buckets: Sequence[tuple[datetime, int]], width_seconds: int) -> bytes:
    """Draw how many messages run first when, and how many have by then."""
    figure, axes = _make(f"first runs, per {format_seconds(width_seconds)}", "messages")
    if buckets:
        width = timedelta(seconds=width_seconds)
        axes.bar([start for start, _ in buckets], [n for _, n in buckets], width=width, align="edge", color=COLOUR)
        _draw_sum(axes, buckets, width)
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
    # the object itself, never pyplot: that keeps every figure of the process, and asks for a screen
    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter(importlib.import_module("matplotlib.ticker").StrMethodFormatter("{x:,.0f}"))
    return figure, axes


def _render(figure: Any) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    return drawn.getvalue()
