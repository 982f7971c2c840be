"""The command `plan`: what a number of messages needs, in either encoding; asks no server."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from click import Choice, option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.messages.timespan import HORIZON, format_seconds, parse_duration
from shared.settings import Settings
from starter.cli.arguments import Arguments
from starter.cli.program import program
from starter.local.terminal import echo_err, print_json, print_table

if TYPE_CHECKING:
    from starter.extras.plan.plan import Plan, Workload

MESSAGES_MAX = 1_000_000_000_000
SHORTEST = timedelta(seconds=1)
PACK_MAX = 5000

EPILOG = """\
Times are like 90s, 15m, 6h or 2d. What comes out is an estimate from figures measured on two cores, with room for the
lanes to be busy three fifths of the time: try a tenth of it before you rely on it. --json tells every figure with where
it comes from; docs/scaling.md says how to read the rest."""


def _read_number(text: str) -> int:
    digits = text.replace("_", "")
    times = 1
    for suffix, size in (("k", 1000), ("M", 1_000_000), ("G", 1_000_000_000)):
        if digits.endswith(suffix):
            digits = digits.removesuffix(suffix)
            times = size
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(f"is {text!r}; give a whole number, like 10000000, 10_000_000 or 10M")
    return int(digits) * times


NUMBER: dict[str, Any] = {"metavar": "N", "type": _read_number}
SPAN: dict[str, Any] = {"metavar": "D", "type": parse_duration}


@program.command("plan", epilog=EPILOG)
@option("--messages", **NUMBER, required=True, help="how many are alive: 10000000, 10_000_000 or 10M")
@option("--mean-interval", **SPAN, required=True, help="between two cycles of a message")
@option(
    "--encoding", type=Choice(("solo", "pack")), help="how messages become workflows; both, side by side, when left out"
)
@option("--handler-time", **SPAN, default="100ms", help="of a call, waiting included (100ms)")
@option("--handler-cpu", **SPAN, default="0s", help="of a call, computing alone (0s)")
@option("--tolerance", **SPAN, help="of a message; 5 % of the interval, at most 15 minutes, when left out")
@option("--retention", **SPAN, default="1d", help="of the namespace (1d)")
@option("--starts-per-day", **NUMBER, default="0", help="messages that end and are replaced by new ones (0)")
@option("--pack-messages", **NUMBER, default="1000", help="in a pack on average (1000)")
@option("--herd", **NUMBER, default="0", help="messages due in one instant (0)")
def run(args: Arguments, settings: Settings) -> int:  # noqa: ARG001 — the shape of every command
    """Estimate the cores, processes, database and shards that messages need."""
    from starter.extras.plan.figures import FIGURES
    from starter.extras.plan.plan import ENCODINGS, make_plan

    workload = _read_workload(args)
    plans = [make_plan(workload, encoding) for encoding in ENCODINGS if args.encoding in (None, encoding)]
    if args.json:
        figures = {name: asdict(figure) for name, figure in FIGURES.items()}
        documents = [asdict(plan) | {"database_bytes": plan.database_bytes} for plan in plans]
        print_json({"demand": asdict(workload), "plans": documents, "figures": figures})
        return FINE
    print_table(("", *(plan.encoding for plan in plans)), ([name, *map(show, plans)] for name, show in ROWS))
    for plan in plans:
        for advice in plan.advice:
            echo_err(f"{plan.encoding}: {advice}")
    measured, assumed = (sum(x.basis == basis for x in FIGURES.values()) for basis in ("measured", "assumed"))
    echo_err(
        f"from {len(FIGURES)} figures, {measured} of them measured on two cores and {assumed} assumed; "
        "--json tells each with its source"
    )
    return FINE


def _read_workload(args: Arguments) -> "Workload":
    """Check the arguments; raises InvalidSetting that names the wrong option."""
    from starter.extras.plan.plan import Workload

    spans = {
        "mean_interval": (SHORTEST, HORIZON),
        "handler_time": (timedelta(milliseconds=1), timedelta(hours=24)),
        "handler_cpu": (timedelta(0), args.handler_time),
        "retention": (timedelta(hours=1), HORIZON),
        "tolerance": (timedelta(0), HORIZON),
    }
    given = {name: getattr(args, name) for name in spans}
    for name, (minimum, maximum) in spans.items():
        if given[name] is not None and not minimum <= given[name] <= maximum:
            shown = map(_show_span, (given[name], minimum, maximum))
            raise InvalidSetting("--{}: is {}; give a time from {} to {}".format(name.replace("_", "-"), *shown))
    numbers = (("messages", 1, MESSAGES_MAX), ("pack_messages", 1, PACK_MAX), ("herd", 0, args.messages))
    for name, minimum, maximum in numbers:
        if not minimum <= (value := getattr(args, name)) <= maximum:
            option = name.replace("_", "-")
            raise InvalidSetting(f"--{option}: is {value:,}; give a number from {minimum} to {maximum:,}")
    fields = {name: getattr(args, name) for name in ("messages", "starts_per_day", "herd", "pack_messages")}
    return Workload(**fields, **{name: span.total_seconds() for name, span in given.items() if span is not None})


def _show_span(span: timedelta) -> str:
    return format_seconds(span.total_seconds()) if span >= SHORTEST else f"{span / SHORTEST:g} s"


def _show_rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _show_bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.0f} KB"


def _show_cores(value: float) -> str:
    return f"{max(value, 0.1):,.1f}" if value < 10 else f"{value:,.0f}"


ROWS: tuple[tuple[str, "Callable[[Plan], str]"], ...] = (
    ("runs on", lambda plan: plan.place),
    ("lane", lambda plan: plan.lane),
    ("cycles a second", lambda plan: _show_rate(plan.cycles_per_second)),
    ("messages a wake", lambda plan: _show_rate(plan.in_batch)),
    ("workflows", lambda plan: f"{plan.workflows:,}"),
    ("worker cores", lambda plan: _show_cores(plan.worker_cores)),
    ("worker processes", lambda plan: f"{plan.worker_processes:,}"),
    ("worker memory", lambda plan: _show_bytes(plan.worker_memory)),
    ("server cores", lambda plan: _show_cores(plan.server_cores)),
    ("database cores", lambda plan: _show_cores(plan.database_cores)),
    ("transactions a second", lambda plan: _show_rate(plan.transactions_per_second)),
    ("log syncs a second", lambda plan: _show_rate(plan.syncs_per_second)),
    ("log written a second", lambda plan: _show_bytes(plan.log_bytes_per_second)),
    ("database: asleep", lambda plan: _show_bytes(plan.asleep_bytes)),
    ("database: ended runs", lambda plan: _show_bytes(plan.closed_bytes)),
    ("history shards", lambda plan: f"{plan.shards:,}"),
    ("task queue partitions", lambda plan: f"{plan.partitions:,}"),
    ("all started after", lambda plan: format_seconds(plan.start_seconds)),
    (
        "all due at once have run after",
        lambda plan: "-" if plan.herd_seconds is None else format_seconds(plan.herd_seconds),
    ),
    ("Temporal Cloud actions a second", lambda plan: _show_rate(plan.actions_per_second)),
)
"""The rows of a printed plan; docs/scaling.md has the same rows."""
