"""The overview: what is wrong first, with the next step to each, then how much there is and what is due when."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from shared.keepers.gates import GateClosure
from shared.lanes import LANES
from shared.messages.timespan import format_seconds
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.plot import plot_forecast
from starter.extras.web.page.server_snapshots import HOURS
from starter.extras.web.page.snapshot import Part
from starter.extras.web.page.template import render, with_query
from starter.extras.web.requests import check_unlimited, read_number, read_query
from starter.insight.doctor.checks import NOT_LOOKED_AT, Finding, Severity, find_worst, worst_first
from starter.insight.doctor.lanes import LaneWorkers
from starter.insight.forecast import Forecast
from starter.local.terminal import plural
from starter.steering.pages import MessagePage
from starter.steering.status.reasons import group_reasons
from starter.steering.stored.memo_counts import MessageCount, explain_counts

REASONS_SHOWN = 3
TITLES = {
    "server": "Temporal's server does not answer",
    "workers": "Workers missing",
    "backlog": "A lane is behind",
    "overdue": "Messages are overdue",
    "workflows": "Something stands still",
    "kinds": "Kinds without a handler",
    "parked": "Messages are parked",
    "gates": "Gates are closed",
    "forecast": "Too much will be due",
}
LINKS = {
    "server": ("/workers", "what is known of workers"),
    "workers": ("/workers", "workers by lane"),
    "backlog": ("/workers", "workers by lane"),
    "overdue": ("/messages?state=active&due_before=now", "what is due by now"),
    "workflows": ("/workers#standing-still", "what stands still, and why"),
    "kinds": ("/messages", "messages"),
    "parked": ("/parked", "parked messages by reason"),
    "gates": ("/gates", "closed gates"),
    "forecast": ("#due", "what is due when"),
}


@dataclass(frozen=True, slots=True)
class Concern:
    """One thing that needs a person, or that nobody could look at."""

    level: str
    title: str
    sentence: str
    remedy: str
    about: str
    link: str
    link_text: str


async def show_overview(request: Request) -> Response:
    """Show it."""
    check_unlimited(request)
    hours = read_number(read_query(request, ("hours",)), "hours", HOURS[0], HOURS[0], HOURS[-1]) or HOURS[0]
    hours = min(HOURS, key=lambda known: abs(known - hours))
    snapshots = find_page(request).snapshots
    lanes, counts, parked, gates, forecast = await asyncio.gather(
        snapshots.lanes.read(),
        snapshots.counts.read(),
        snapshots.parked.read(),
        snapshots.gates.read(),
        snapshots.forecasts[hours].read(),
    )
    findings, serving = lanes.value or ([], {})
    concerns = find_concerns(findings, counts.value, parked.value, gates.value, forecast.value)
    is_away = any(finding.check == "server" and finding.level is not Severity.FINE for finding in findings)
    # without the server each part would say so once more
    silent = [] if is_away else list(_name_silent(lanes, counts, parked, gates, forecast))

    plots = plot_forecast(forecast.value) if forecast.value else []
    gated = forecast.value.count_gated() if forecast.value else 0
    uncounted_gates = len(forecast.value.uncounted_gates) if forecast.value else 0
    return render(
        request,
        "overview.html",
        concerns=concerns,
        is_fine=not concerns and not silent,
        silent=silent,
        is_away=is_away,
        counts=describe_counts(counts.value),
        lanes=describe_lanes(serving, findings, forecast.value),
        plots=plots,
        forecast=forecast.value,
        forecast_age=forecast.age,
        gated=gated,
        uncounted_gates=uncounted_gates,
        about=describe_source(forecast.value),
        hours=hours,
        horizons=HOURS,
    )


def find_concerns(
    findings: Sequence[Finding],
    counts: Mapping[str, MessageCount] | None,
    parked: MessagePage | None,
    gates: Mapping[str, GateClosure] | None,
    forecast: Forecast | None,
) -> list[Concern]:
    """Give what needs a person, the worst first."""
    found = [
        # what could not be looked at for a reason that has a line of its own needs none
        finding
        for finding in findings
        if finding.level is not Severity.FINE and not finding.seen.startswith(NOT_LOOKED_AT)
    ]
    found += _describe_parked(counts, parked)

    if gates:
        held = forecast.count_gated() if forecast else 0
        holding = f"; {plural(held, 'message')} held" if held else ""
        reasons = "; ".join(f"{name}: {closure.reason or 'no reason given'}" for name, closure in [*gates.items()][:3])
        seen = f"{plural(len(gates), 'gate')} closed ({reasons}){holding}"
        found.append(Finding(Severity.WARNING, seen, check="gates"))

    if forecast is not None:
        for overload in forecast.overloads:
            seen, _, remedy = overload.describe(forecast.edges).partition(". ")
            found.append(Finding(Severity.WARNING, seen, remedy, overload.lane, "forecast"))

    return [_to_concern(finding) for finding in worst_first(found)]


def _describe_parked(counts: Mapping[str, MessageCount] | None, parked: MessagePage | None) -> Iterator[Finding]:
    count = counts["parked"] if counts else None
    listed = parked.messages if parked else ()

    reasons = Counter(group_reasons([message.parked_reason for message in listed]))
    if not reasons and not (count and count.number):
        return

    number = count if count and count.number else MessageCount(reasons.total(), parked is None or not parked.cursor)
    common = ", ".join(f"{reason} ({n:,})" for reason, n in reasons.most_common(REASONS_SHOWN))
    is_cut = parked is not None and bool(parked.cursor)
    among = f" among the first {reasons.total():,}" if is_cut else ""
    said = f"; most often{among}: {common}" if len(reasons) > 1 else f": {common}" if common else ""
    remedy = "look at the reason, mend its cause, then replay them"
    yield Finding(Severity.WARNING, f"{number.describe()} parked{said}", remedy, check="parked")


def _to_concern(finding: Finding) -> Concern:
    link, text = LINKS.get(finding.check, ("/workers", "workers"))
    if finding.check == "overdue" and finding.about:
        link = with_query("/messages", {"lane": finding.about, "state": "active", "due_before": "now"})
    title = TITLES.get(finding.check, finding.check)
    return Concern(finding.level.value, title, finding.seen, finding.remedy, finding.about, link, text)


def _name_silent(*parts: Part[object]) -> Iterator[tuple[str, str]]:
    names = ("workers and lanes", "counts of messages", "parked messages", "gates", "what is due")
    for name, part in zip(names, parts, strict=True):
        if part.problem:
            yield name, part.problem


def describe_counts(counts: Mapping[str, MessageCount] | None) -> list[tuple[str, str, MessageCount | None]]:
    """Give label, state and count of each tile."""
    return [(state, state, counts[state] if counts else None) for state in ("active", "paused", "parked")]


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One lane in short."""

    lane: str
    workers: int
    waiting: int
    waits: str
    due: int | None
    gated: int | None
    capacity: float | None
    level: str
    state: str


def describe_lanes(
    serving: Mapping[str, LaneWorkers], findings: Sequence[Finding], forecast: Forecast | None
) -> list[LaneRow]:
    """Give a row for each lane that was looked at."""
    rows = list[LaneRow]()
    for lane in LANES:
        if (workers := serving.get(lane)) is None:
            continue

        worst = find_worst(finding for finding in findings if finding.about == lane)
        waits = format_seconds(workers.waits.total_seconds()) if workers.waiting else ""
        due = sum(forecast.lanes[lane]) if forecast else None
        gated = forecast.count_gated(lane=lane) if forecast else None
        capacity = forecast.capacity[lane].per_second if forecast else None
        state = "fine" if worst is Severity.FINE else "see above"
        rows.append(
            LaneRow(
                lane=lane,
                workers=len(workers.versions),
                waiting=workers.waiting,
                waits=waits,
                due=due,
                gated=gated,
                capacity=capacity,
                level=worst.value,
                state=state,
            )
        )

    return rows


def describe_source(forecast: Forecast | None) -> str:
    """Say where the counts of a forecast come from, and what is missing in them."""
    if forecast is None:
        return ""
    packed = forecast.packed
    silent = [f"kind {kind}: packs that no worker serves, or that are busy, are missing" for kind in packed.silent]
    about = [f"packed messages are counted {explain_counts(packed.age, packed.uncounted)}"] if packed.is_about else []
    return "; ".join([*about, *silent])
