"""The command `rehearse`: how revisit policies would have done on a history of changes; asks no server."""

from pathlib import Path
from typing import TYPE_CHECKING

from click import argument, option

from shared.errors import InvalidSetting, check_extra
from shared.exit import FINE
from shared.messages.timespan import HORIZON
from shared.settings import Settings
from starter.cli.arguments import DURATION, FILE, MOMENT, Arguments, Decorator, complete_second_word, join
from starter.cli.program import program
from starter.local.terminal import echo_err, print_json, print_table

if TYPE_CHECKING:
    from starter.extras.rehearsal.history_file import HistoryColumns
    from starter.extras.rehearsal.rehearsal import Rehearsal, RehearsalOptions

VISITS_MAX = 10**15

REHEARSE_HELP = """\
HISTORY has a row for each change: columns id and changed_at, in any order; a row without changed_at names a page that
did not change. A policy is fixed:INTERVAL; adaptive, that of the handler http; adaptive:start=1h,min=5m,max=7d,
increase=0.4,decrease=0.2; or MODULE:FUNCTION, a function that takes a visit and gives a timedelta. Beside them stand
three references with as many visits: uniform, proportional, and optimum for known rates. docs/rehearse.md says what is
measured, and how. For millions of pages there is 'dormice spark rehearse'."""


def _read_budget(text: str) -> tuple[int, bool]:
    digits, slash, unit = text.replace("_", "").partition("/")
    is_number = digits.isascii() and digits.isdecimal() and 1 <= int(digits) <= VISITS_MAX
    if not is_number or (slash and unit != "day"):
        raise ValueError(f"is {text!r}; give visits in all, like 1000000, or a day, like 50000/day")
    return int(digits), bool(slash)


def rehearsal_options(forms: str) -> Decorator:
    """Make the arguments and options of a rehearsal, wherever it runs."""
    return join(
        argument("history", shell_complete=complete_second_word, help=f"file of changes: {forms}"),
        option("--policy", metavar="POLICY", multiple=True, help="what to rehearse; may be repeated (adaptive)"),
        option("--budget", metavar="N[/day]", type=_read_budget, help="visits that a policy may make, in all or a day"),
        option("begin", "--from", **MOMENT, help="where it begins; with the hour of the first change when left out"),
        option("--until", **MOMENT, help="where it ends; with the hour of the last change when left out"),
        option("--warm-up", **DURATION, default="0s", help="time at the beginning that figures leave out"),
        option("--id-column", metavar="NAME", default="id", help="column of the page's id (id)"),
        option(
            "--changed-column",
            metavar="NAME",
            default="changed_at",
            help="column with the time of the change (changed_at)",
        ),
        option("--png", **FILE, help="draw it, too"),
        option("--html", **FILE, help="write table and plot as one page, too"),
    )


def read_options(args: Arguments) -> "RehearsalOptions":
    """Read what is to be rehearsed; raises InvalidSetting, and Misconfigured where a plot can't be drawn."""
    from starter.extras.rehearsal.policies import MICROSECOND, read_policy, to_microseconds
    from starter.extras.rehearsal.references import REFERENCES
    from starter.extras.rehearsal.rehearsal import RehearsalOptions

    names = args.policy or ["adaptive"]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise InvalidSetting(f"--policy: {repeated} is given twice; give it once")
    if reference := next((name for name in names if name in REFERENCES), None):
        raise InvalidSetting(f"--policy: {reference} is a reference, which is there in any case; leave it out")
    if args.warm_up > HORIZON:
        raise InvalidSetting(f"--warm-up: is more than {HORIZON.days} d; give less")
    for name, file in (("--png", args.png), ("--html", args.html)):
        if file is not None and not file.parent.is_dir():
            raise InvalidSetting(f"{name}: there is no folder {file.parent}; make it, or name another file")
        if file is not None:
            check_extra("rehearsal", name, "matplotlib")
    budget, is_daily = args.budget or (None, False)
    begin = None if args.begin is None else to_microseconds(args.begin)
    end = None if args.until is None else to_microseconds(args.until)
    return RehearsalOptions(
        policies={name: read_policy(name) for name in names},
        begin=begin,
        end=end,
        warm_up=args.warm_up // MICROSECOND,
        budget=budget,
        is_daily=is_daily,
    )


def read_columns(args: Arguments) -> "HistoryColumns":
    """Read how the columns of the history are named."""
    from starter.extras.rehearsal.history_file import HistoryColumns

    return HistoryColumns(args.id_column, args.changed_column)


@program.command("rehearse", epilog=REHEARSE_HELP)
@rehearsal_options("CSV, JSON lines or Parquet")
def run(args: Arguments, settings: Settings) -> int:  # noqa: ARG001 — the shape of every command
    """Tell how revisit policies would have done on a history of changes."""
    from starter.extras.rehearsal.history_file import ChangeHistories
    from starter.extras.rehearsal.rehearsal import LocalHistories, rehearse

    options = read_options(args)
    histories = ChangeHistories.load(args.history, read_columns(args))
    report(args, rehearse(LocalHistories(histories), options))
    return FINE


def report(args: Arguments, found: "Rehearsal") -> None:
    """Print a rehearsal, and write it to the files that are asked for."""
    from starter.extras.rehearsal.page import COLUMNS, describe, draw, to_rows, write_page

    if args.json:
        print_json(found.to_document())
    else:
        print_table([name.upper() for name, _, _ in COLUMNS], to_rows(found))
    for line in describe(found):
        echo_err(line)
    if args.png is not None:
        args.png.write_bytes(draw(found))
    if args.html is not None:
        args.html.write_text(write_page(found, Path(args.history).name), "utf-8")
