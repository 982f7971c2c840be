"""The plot of what is due: places and heights of bars, which a template draws, and the same numbers as a table."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shared.messages.timespan import format_moment, format_seconds
from starter.insight.forecast import Forecast, LaneCapacity

WIDTH = 1000.0
HEIGHT = 100.0
"""Units of the drawing, which is stretched to the width of the page."""
GAP = 1.5
FAR = 3.0
"""A capacity that is so many times the highest bar would flatten the bars, and is only said."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One interval: where it is drawn, whether the lane can't do it in time, and what it says."""

    x: float
    y: float
    width: float
    height: float
    is_over: bool
    title: str
    count: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class LanePlot:
    """The bars of a lane, in messages an interval, beside what it can do."""

    lane: str
    bars: Sequence[Bar]
    total: int
    top: str
    """What the upper edge stands for."""
    capacity_y: float | None
    """Where the line of the capacity is; None if it is not known or far above."""
    capacity: str


def plot_forecast(forecast: Forecast) -> list[LanePlot]:
    """Give a plot for each lane on which something is due."""
    due = {lane: counts for lane, counts in forecast.lanes.items() if any(counts)}
    return [_plot_lane(lane, counts, forecast.edges, forecast.capacity[lane]) for lane, counts in due.items()]


def _plot_lane(lane: str, counts: Sequence[int], edges: Sequence[float], capacity: LaneCapacity) -> LanePlot:
    intervals = [*itertools.pairwise(edges)]
    # the first interval has what is overdue, too, and may be short: as a rate it would dwarf the others
    whole = edges[-1] - edges[-2]
    rates = [count / max(end - begin, whole) for count, (begin, end) in zip(counts, intervals, strict=True)]
    highest = max(rates)
    able = capacity.per_second
    is_drawn = able is not None and able <= FAR * highest
    top = max(highest, able or 0.0) if is_drawn else highest
    scale = (WIDTH / (edges[-1] - edges[0]), HEIGHT / top if top else 0.0)
    bars = [
        _draw(begin, end, edges[0], count, rate, able, scale)
        for count, rate, (begin, end) in zip(counts, rates, intervals, strict=True)
    ]
    line = HEIGHT - able * scale[1] if is_drawn and able is not None else None
    upper = f"{round(top * whole):,} in {format_seconds(whole)}"

    return LanePlot(lane, bars, sum(counts), upper, line, describe_capacity(capacity))


def _draw(  # noqa: PLR0917 — numbers of one bar
    begin: float, end: float, first: float, count: int, rate: float, able: float | None, scale: tuple[float, float]
) -> Bar:
    per_second = scale[0]
    height = rate * scale[1]
    width = max((end - begin) * per_second - GAP, 0.5)
    title = f"{format_moment(begin)}, for {format_seconds(end - begin)}: {count:,} due"
    is_over = able is not None and rate > able

    return Bar(
        round((begin - first) * per_second, 2),
        round(HEIGHT - height, 2),
        round(width, 2),
        round(height, 2),
        is_over,
        title,
        count,
        begin,
        end,
    )


def describe_capacity(capacity: LaneCapacity) -> str:
    """Say what a lane can do."""
    if not capacity.workers:
        return "no worker serves it, so nobody knows what it can do"
    if capacity.per_second is None:
        return "its workers have not had enough to do yet to know what they can do"
    return f"its workers have done {capacity.per_second:,.4g} a second"
