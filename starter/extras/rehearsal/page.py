"""The page of a rehearsal: a table and a plot of policies side by side, in one HTML file."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape

from shared.messages.timespan import format_moment, format_seconds
from starter.extras.rehearsal.policies import to_datetime
from starter.extras.rehearsal.references import expected_freshness, share_evenly, trace_optimum
from starter.extras.rehearsal.rehearsal import DAY, Rehearsal, RehearsedPolicy
from starter.insight.page import write_document, write_image, write_table
from starter.insight.plots import add_axes, make_figure, render

GREY = "#8a939b"
CURVE_POINTS = 30
ROOM = 3.0
"""How much further than the points the curves go, on both sides, as a factor of visits."""

COLUMNS: Sequence[tuple[str, str, Callable[[RehearsedPolicy], str]]] = (
    ("policy", "as given; uniform, proportional and optimum are references", lambda each: each.name),
    ("visits a day", "of all pages", lambda each: _show_number(each.per_day)),
    ("fresh", "share of time that a copy is current", lambda each: f"{each.freshness:.2%}"),
    ("age", "mean time since a copy stopped to be current, 0 while it is", lambda each: format_seconds(each.age)),
    (
        "delay",
        "mean time from a change to the visit that finds it",
        lambda each: "-" if each.delay is None else format_seconds(each.delay),
    ),
    ("missed", "share of changes that another one followed before the next visit", lambda each: f"{each.missed:.1%}"),
    ("unseen", "share of changes that no visit had found at the end", lambda each: f"{each.unseen:.1%}"),
    ("finds", "share of visits that found a change", lambda each: f"{each.finds:.1%}"),
    ("busiest hour", "visits in the hour with the most", lambda each: f"{max(each.totals.hours):,}"),
)
"""Name, meaning and text of each column of the table; docs/rehearse.md has the same."""


def to_rows(rehearsal: Rehearsal) -> list[list[str]]:
    """Give the rows of the table."""
    return [[show(each) for _, _, show in COLUMNS] for each in rehearsal.policies]


def describe(rehearsal: Rehearsal) -> list[str]:
    """Say in sentences what was rehearsed, and what was changed for a budget."""
    period = rehearsal.period
    pages = rehearsal.pages
    changes = sum(count * number for count, number in pages.items())
    begin = format_moment(period.begin / 1e6)
    end = format_moment(period.end / 1e6)
    never = f"{pages.get(0, 0):,} of which never change"
    found = [f"{sum(pages.values()):,} pages, {never}; {changes:,} changes from {begin} to {end}"]
    if period.measured_from > period.begin:
        found.append(f"figures are of the time from {format_moment(period.measured_from / 1e6)} on")

    slowed = [each for each in rehearsal.policies if each.factor > 1 and not each.is_reference]
    return found + [
        f"{each.name}: every interval is {each.factor:.4g} times as long, to keep to {rehearsal.budget:,} visits"
        for each in slowed
    ]


def draw(rehearsal: Rehearsal) -> bytes:
    """Draw the policies as PNG, with curves of what formulas say of any number of visits."""
    pages = rehearsal.pages
    period = rehearsal.period
    points = [(each.name, each.per_day, each.freshness, each.is_reference) for each in rehearsal.policies]
    days = (period.end - period.begin) / DAY
    drawn = [per_day * days for _, per_day, _, _ in points if per_day]
    minimum, maximum = (min(drawn) / ROOM, max(drawn) * ROOM) if drawn else (1.0, 10.0)
    budgets = [minimum * (maximum / minimum) ** (n / CURVE_POINTS) for n in range(CURVE_POINTS + 1)]
    curves = {
        "optimum, by the formula": trace_optimum(pages, minimum, maximum),
        "uniform, by the formula": [(each, expected_freshness(pages, share_evenly(pages, each))) for each in budgets],
    }

    return _plot(
        [point for point in points if point[1]],
        {name: [(visits / days, share) for visits, share in curve] for name, curve in curves.items() if curve},
        {each.name: each.totals.hours for each in rehearsal.policies if not each.is_reference},
        to_datetime(period.measured_from),
    )


def _plot(
    points: Sequence[tuple[str, float, float, bool]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    loads: Mapping[str, Sequence[int]],
    begin: datetime,
) -> bytes:
    """Draw freshness over visits a day, and the visits of each hour.

    A point is a name, visits a day, a share, and whether it is a reference; curves have visits a day and shares.
    """
    figure = make_figure(height=7.0)
    axes = add_axes(figure, "freshness: share of time that a copy is current", "", "{x:.0%}", (2, 1, 1))

    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(*zip(*curve, strict=True), color=GREY, linewidth=1.2, linestyle=("-", "--")[number % 2], label=name)

    colours = {name: f"C{number}" for number, name in enumerate(loads)}
    markers = iter("^v*Pos")

    for name, per_day, share, is_reference in points:
        marker = next(markers, "o") if is_reference else "D"
        axes.plot([per_day], [share], marker, color=colours.get(name, GREY), label=name)

    ticker = importlib.import_module("matplotlib.ticker")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("visits a day")
    axes.legend(fontsize=8, loc="lower right", frameon=False)
    below = add_axes(figure, "visits in each hour", "visits", place=(2, 1, 2))

    for name, load in loads.items():
        edges = [begin + timedelta(hours=hour) for hour in range(len(load) + 1)]
        below.stairs(load, edges, baseline=None, color=colours[name], linewidth=1, label=name)

    below.set_ylim(0, 1.3 * max([1, *(max(load) for load in loads.values())]))  # with room for the legend
    below.set_xlabel("UTC")
    below.tick_params(axis="x", rotation=30)
    below.legend(fontsize=8, loc="upper right", frameon=False, ncols=2)

    return render(figure)


def write_page(rehearsal: Rehearsal, source: str) -> str:
    """Give the page; it loads nothing from elsewhere."""
    notes = "\n".join(f"<p>{escape(line)}</p>" for line in describe(rehearsal))
    table = write_table([name for name, _, _ in COLUMNS], to_rows(rehearsal), texts=1)
    meanings = write_table(("column", "meaning"), [(name, meaning) for name, meaning, _ in COLUMNS])
    body = f"""{notes}
{table}
<h2>Plots</h2>
{write_image("freshness over visits a day, and visits by hour", draw(rehearsal))}
<h2>Columns</h2>
{meanings}"""

    return write_document(f"rehearsal of {source}", f"Policies on {source}", body)


def _show_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
