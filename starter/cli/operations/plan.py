"""The command `plan`: what a number of messages needs, in either encoding; asks no server."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING

from shared.errors import InvalidSetting
from shared.messages.timespan import HORIZON, format_seconds
from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import Commands
from starter.cli.exit_codes import FINE
from starter.screen import echo_err, print_json, print_table

if TYPE_CHECKING:
    from starter.insight.plan import Plan, Workload

MESSAGES_MAX = 1_000_000_000_000
SHORTEST = timedelta(seconds=1)
RETENTION_MIN = timedelta(hours=1)
PACK_MAX = 5000
HANDLER_TIME, RETENTION = "100ms", "1d"

EPILOG = """\
Times are like 90s, 15m, 6h or 2d. What comes out is an estimate from figures measured on two cores, with room for \
the lanes to
be busy three fifths of the time: try a tenth of it before you rely on it. --json tells every figure with where it \
comes from;
docs/scaling.md says how to read the rest."""


def add_plan(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("plan", run_plan, "estimate the cores, processes, database and shards that messages need")
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "--messages",
        metavar="N",
        type=_read_number,
        required=True,
        help="how many are alive: 10000000, 10_000_000 or 10M",
    )
    add("--mean-interval", metavar="D", type=arguments.duration, required=True, help="between two cycles of a message")
    add("--encoding", choices=("solo", "pack"), help="how messages become workflows; both, side by side, when left out")
    add(
        "--handler-time",
        metavar="D",
        type=arguments.duration,
        default=HANDLER_TIME,
        help="of a call, waiting included (%(default)s)",
    )
    add(
        "--handler-cpu",
        metavar="D",
        type=arguments.duration,
        default="0s",
        help="of a call, computing alone (%(default)s)",
    )
    add(
        "--tolerance",
        metavar="D",
        type=arguments.duration,
        help="of a message; 5 %% of the interval, at most 15 minutes, when left out",
    )
    add("--retention", metavar="D", type=arguments.duration, default=RETENTION, help="of the namespace (%(default)s)")
    add(
        "--starts-per-day",
        metavar="N",
        type=_read_number,
        default="0",
        help="messages that end and are replaced by new ones (0)",
    )
    add("--pack-messages", metavar="N", type=_read_number, default="1000", help="in a pack on average (%(default)s)")
    add("--herd", metavar="N", type=_read_number, default="0", help="messages due in one instant (0)")


def run_plan(args: argparse.Namespace, settings: Settings) -> int:  # noqa: ARG001 — the shape of every command
    """Print what each encoding needs."""
    from starter.insight.figures import FIGURES
    from starter.insight.plan import ENCODINGS, make_plan

    demand = read_demand(args)
    plans = [make_plan(demand, encoding) for encoding in ENCODINGS if args.encoding in (None, encoding)]
    if args.json:
        figures = {name: asdict(figure) for name, figure in FIGURES.items()}
        documents = [asdict(plan) | {"database_bytes": plan.database_bytes} for plan in plans]
        print_json({"demand": asdict(demand), "plans": documents, "figures": figures})
        return FINE
    print_table(("", *(plan.encoding for plan in plans)), ([name, *map(show, plans)] for name, show in ROWS))
    for plan in plans:
        for advice in plan.advice:
            echo_err(f"{plan.encoding}: {advice}")
    echo_err(describe_basis())
    return FINE


def read_demand(args: argparse.Namespace) -> "Workload":
    """Check the arguments; raises InvalidSetting that names the wrong option."""
    from starter.insight.plan import Workload

    _check_span("--mean-interval", args.mean_interval, SHORTEST, HORIZON)
    _check_span("--handler-time", args.handler_time, timedelta(milliseconds=1), timedelta(hours=24))
    _check_span("--handler-cpu", args.handler_cpu, timedelta(0), args.handler_time)
    _check_span("--retention", args.retention, RETENTION_MIN, HORIZON)
    if args.tolerance is not None:
        _check_span("--tolerance", args.tolerance, timedelta(0), HORIZON)
    for name, least, most in (
        ("messages", 1, MESSAGES_MAX),
        ("pack_messages", 1, PACK_MAX),
        ("herd", 0, args.messages),
    ):
        if not least <= getattr(args, name) <= most:
            raise InvalidSetting(
                f"--{name.replace('_', '-')}: is {getattr(args, name):,}; give a number from {least} to {most:,}"
            )
    return Workload(
        messages=args.messages,
        mean_interval=args.mean_interval.total_seconds(),
        handler_time=args.handler_time.total_seconds(),
        handler_cpu=args.handler_cpu.total_seconds(),
        tolerance=None if args.tolerance is None else args.tolerance.total_seconds(),
        retention=args.retention.total_seconds(),
        starts_per_day=args.starts_per_day,
        herd=args.herd,
        pack_messages=args.pack_messages,
    )


def describe_basis() -> str:
    """Say how far the figures can be trusted."""
    from starter.insight.figures import FIGURES

    count = sum(figure.basis == "measured" for figure in FIGURES.values())
    assumed = sum(figure.basis == "assumed" for figure in FIGURES.values())
    return (
        f"from {len(FIGURES)} figures, {count} of them measured on two cores and {assumed} assumed; "
        "--json tells each with its source"
    )


def _check_span(name: str, given: timedelta, least: timedelta, most: timedelta) -> None:
    if not least <= given <= most:
        spans = (
            format_seconds(span.total_seconds()) if span >= SHORTEST else f"{span / SHORTEST:g} s"
            for span in (given, least, most)
        )
        raise InvalidSetting("{}: is {}; give a time from {} to {}".format(name, *spans))


def _read_number(text: str) -> int:
    digits, times = text.replace("_", ""), 1
    for suffix, size in (("k", 1000), ("M", 1_000_000), ("G", 1_000_000_000)):
        if digits.endswith(suffix):
            digits, times = digits.removesuffix(suffix), size
    if not (digits.isascii() and digits.isdecimal()):
        raise argparse.ArgumentTypeError(f"is {text!r}; give a whole number, like 10000000, 10_000_000 or 10M")
    return int(digits) * times


def show_rate(value: float) -> str:
    """Write a number a second; a small one with decimals."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def show_bytes(value: float) -> str:
    """Write a size in the unit that suits it."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.0f} KB"


def show_cores(value: float) -> str:
    """Write a number of cores; the least is 0.1."""
    return f"{max(value, 0.1):,.1f}" if value < 10 else f"{value:,.0f}"


ROWS: tuple[tuple[str, "Callable[[Plan], str]"], ...] = (
    ("runs on", lambda plan: plan.place),
    ("lane", lambda plan: plan.lane),
    ("cycles a second", lambda plan: show_rate(plan.cycles_per_second)),
    ("messages a wake", lambda plan: show_rate(plan.in_batch)),
    ("workflows", lambda plan: f"{plan.workflows:,}"),
    ("worker cores", lambda plan: show_cores(plan.worker_cores)),
    ("worker processes", lambda plan: f"{plan.worker_processes:,}"),
    ("worker memory", lambda plan: show_bytes(plan.worker_memory)),
    ("server cores", lambda plan: show_cores(plan.server_cores)),
    ("database cores", lambda plan: show_cores(plan.database_cores)),
    ("transactions a second", lambda plan: show_rate(plan.transactions_per_second)),
    ("log syncs a second", lambda plan: show_rate(plan.syncs_per_second)),
    ("log written a second", lambda plan: show_bytes(plan.log_bytes_per_second)),
    ("database: asleep", lambda plan: show_bytes(plan.asleep_bytes)),
    ("database: ended runs", lambda plan: show_bytes(plan.closed_bytes)),
    ("history shards", lambda plan: f"{plan.shards:,}"),
    ("task queue partitions", lambda plan: f"{plan.partitions:,}"),
    ("all started after", lambda plan: format_seconds(plan.start_seconds)),
    ("the herd has run after", lambda plan: "-" if plan.herd_seconds is None else format_seconds(plan.herd_seconds)),
    ("Temporal Cloud actions a second", lambda plan: show_rate(plan.actions_per_second)),
)
"""The rows of a printed plan; docs/scaling.md has the same rows."""
