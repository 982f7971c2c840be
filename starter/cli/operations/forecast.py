"""The command `forecast`: what is due when, what the lanes can do, and what to do if that is not enough."""

import itertools
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from click import Choice, option

from shared.errors import InvalidSetting, check_extra
from shared.exit import FINE
from shared.lanes import LANES
from shared.messages.timespan import format_moment, format_seconds
from shared.settings import Settings
from starter.cli.arguments import FILE, Arguments, read_number
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from starter.insight.forecast import Forecast, LaneCapacity

HOURS = 24.0
HOURS_MAX = 24 * 366.0
GATES_SHOWN = 3

EPILOG = """\
Each message counts once, when it is due next: what comes back within the time is not foreseen. What is overdue counts
in the first interval; what is paused or parked does not count, and what is held at the closed gate of its kind or lane
counts when that opens. Beside each count stands how much of the lane's capacity
it is: the most that its workers have done a second so far, in ten seconds on end, so it is at least that. Say what you
know better with --capacity. The index is asked five times a second at most: a day full of messages takes some fifteen
seconds. Up to 200 packs are asked when their messages are due; more, and those that no worker serves, are counted
about, by what they last wrote into the index themselves."""


@program.command("forecast", epilog=EPILOG)
@option("--hours", type=read_number, metavar="N", default=HOURS, help=f"how far to look ahead ({HOURS:g})")
@option("--by", type=Choice(("lane", "kind")), default="lane", help="what to count apart (lane)")
@option("--capacity", metavar="LANE=N", multiple=True, help="what a lane can do a second; may be repeated")
@option("--exact", is_flag=True, help="ask every pack, however many there are; needs workers")
@option("--sample", metavar="N", type=int, help="ask N packs of each kind, which stand for all; 0 asks all")
@option("--png", **FILE, help="draw it, too")
async def run(args: Arguments, settings: Settings) -> int:
    """Tell how many messages are due when, and whether the lanes can do it."""
    from activities.registry import load_registry
    from starter.insight.forecast import make_forecast

    if not 0 < args.hours <= HOURS_MAX:
        raise InvalidSetting(f"--hours: is {args.hours:g}; give a number above 0, at most {HOURS_MAX:g}")
    if args.png is not None and not args.png.parent.is_dir():
        raise InvalidSetting(f"--png: there is no folder {args.png.parent}; make it, or name another file")
    if args.png is not None:
        check_extra("spark", "--png", "matplotlib")
    if args.sample is not None and args.sample < 0:
        raise InvalidSetting(f"--sample: is {args.sample}; give a number of packs, or 0 for all")
    given = dict(map(_read_capacity, args.capacity))
    is_by_kind = args.by == "kind"
    kinds = list(load_registry(settings)) if is_by_kind else None
    client = await open_client(settings)
    horizon = timedelta(hours=args.hours)
    found = await make_forecast(
        client,
        settings,
        time.time(),
        horizon,
        kinds=kinds,
        sample=args.sample or 0,
        is_exact=args.exact or args.sample is not None,
        given=given,
    )
    if args.png is not None:
        _draw(args.png, found)
    if args.json:
        print_json(found.to_document())
    else:
        _print(found, is_by_lane=not is_by_kind)
    return FINE


def _read_capacity(text: str) -> tuple[str, float]:
    lane, _, number = text.partition("=")
    try:
        per_second = float(number)
    except ValueError:
        per_second = 0.0

    if lane not in LANES or not 0 < per_second < float("inf"):
        raise InvalidSetting(
            f"--capacity: {text!r} is no LANE=N with a lane of {', '.join(LANES)} and messages a second; "
            "write for example short=120"
        )

    return lane, per_second


def _draw(path: Path, found: "Forecast") -> None:
    from starter.insight.plots import draw_forecast

    try:
        path.write_bytes(draw_forecast(found.edges, found.due, {n: c.per_second for n, c in found.capacity.items()}))
    except OSError as exc:
        raise InvalidSetting(f"--png: {path} can't be written ({exc.strerror}); name another file") from exc


def _print(found: "Forecast", *, is_by_lane: bool) -> None:
    from starter.steering.stored.memo_counts import explain_counts

    groups = {name: counts for name, counts in found.due.items() if is_by_lane or any(counts)}
    rows: list[list[str]] = []
    for n, (begin, end) in enumerate(itertools.pairwise(found.edges)):
        cells = [_to_cell(counts[n], end - begin, found.capacity.get(name)) for name, counts in groups.items()]
        rows.append([format_moment(begin), format_seconds(end - begin), *cells])
    print_table(("FROM", "FOR", *(name.upper() for name in groups)), rows)
    for lane, capacity in found.capacity.items():
        echo_err(f"lane {lane}: {_describe_capacity(capacity)}")
    packed = found.packed
    if packed.is_about:
        echo_err(f"packed messages: {explain_counts(packed.age, packed.uncounted)}; --exact asks every pack")
    elif packed.asked < packed.packs:
        echo_err(f"{plural(packed.asked, 'pack')} of {packed.packs:,} stand for all; --sample 0 asks every one")
    for kind in packed.silent:
        echo_err(f"warning: kind {kind}: packs that no worker serves, or that are busy, could not be asked")
    _print_gates(found)
    for overload in found.overloads:
        echo_err(f"warning: {overload.describe(found.edges)}")


def _print_gates(found: "Forecast") -> None:
    from starter.insight.due_counts import is_countable

    uncounted = found.uncounted_gates
    for gate, closing in found.gates.items():
        if is_countable(gate):
            gated = plural(found.count_gated(gate=gate), "message")
            echo_err(f"warning: {closing.describe(gate, time.time())}; {gated} held there, due when it opens")
    for gate in uncounted[:GATES_SHOWN]:
        sentence = found.gates[gate].describe(gate, time.time())
        echo_err(f"warning: {sentence}; what needs it counts above, and waits")
    if len(uncounted) > GATES_SHOWN:
        echo_err(f"warning: {plural(len(uncounted) - GATES_SHOWN, 'more gate')} closed; see 'dormice gates list'")


def _to_cell(count: int, seconds: float, capacity: "LaneCapacity | None") -> str:
    if not count or capacity is None or not capacity.per_second:
        return f"{count:,}"
    return f"{count:,} ({count / (capacity.per_second * seconds):.0%})"


def _describe_capacity(capacity: "LaneCapacity") -> str:
    if capacity.is_given:
        return f"{capacity.per_second:,.4g} messages a second, as you say"
    if not capacity.workers:
        return "no worker serves it, so nobody knows what it can do; say so with --capacity"
    if capacity.per_second is None:
        workers = plural(capacity.workers, "worker")
        return f"{workers}, none of which has had much to do yet; say with --capacity what it can do"
    measured = "" if capacity.measured == capacity.workers else f", {capacity.measured} of which have measured it"
    return f"{capacity.per_second:,.4g} messages a second at least, with {plural(capacity.workers, 'worker')}{measured}"
