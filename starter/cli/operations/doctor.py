"""The command `doctor`."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from click import option

from shared.errors import InvalidSetting
from shared.exit import FINE, PARTLY, UNREACHABLE, WRONG
from shared.settings import Settings
from starter.cli.arguments import FOLDER, SECONDS, Arguments
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import clean, echo_err, plural, print_json

if TYPE_CHECKING:
    from starter.insight.doctor.checks import Finding

CHECK_SECONDS = 10.0
CHECK_SECONDS_MAX = 600.0
CODES = {"fine": FINE, "unknown": FINE, "warning": PARTLY, "unreachable": UNREACHABLE, "wrong": WRONG}
"""Exit codes of levels, from good to worst; the worst finding decides."""

EPILOG = """\
A finding is fine, unknown (nobody tells, or a check it needs has failed), a warning, unreachable or wrong. The worst
one decides the exit code: 0 for fine and unknown, 1 for a warning, 3 for unreachable, 2 for wrong. What is changed: a
workflow that no worker sees is started and deleted, to compare clocks. Handler modules are imported, as a worker
does."""


@program.command("doctor", epilog=EPILOG)
@option(
    "topics",
    "--topic",
    metavar="TOPIC",
    multiple=True,
    help="look at a Kafka topic that a bridge consumes, too; may be repeated",
)
@option("--data", **FOLDER, default=".dormice", help="where 'dormice dev' keeps messages (.dormice)")
@option("--server-metrics", metavar="URL", default="", help="the server's own metrics, which count lost deliveries")
@option("--seconds", **SECONDS, default=CHECK_SECONDS, help=f"what each check gets ({CHECK_SECONDS:g})")
async def run(args: Arguments, settings: Settings) -> int:
    """Tell what of this installation is not well, and what to do about it."""
    if not 0 < args.seconds <= CHECK_SECONDS_MAX:
        raise InvalidSetting(f"--seconds: is {args.seconds:g}; give a number above 0, at most {CHECK_SECONDS_MAX:g}")
    from starter.insight.doctor.checks import find_worst
    from starter.insight.doctor.machine import check_machine
    from starter.insight.doctor.run_checks import examine

    findings, registry = check_machine(settings, args.data)
    topics = tuple(dict.fromkeys(args.topics))
    findings += await examine(
        settings,
        registry,
        open_client,
        data=args.data,
        topics=topics,
        seconds=args.seconds,
        metrics=args.server_metrics,
    )
    if args.json:
        for finding in findings:
            print_json({name: getattr(finding, name) or None for name in ("check", "about", "level", "seen", "remedy")})
    else:
        _print(findings)
    return CODES[find_worst(findings)]


def _print(findings: "Sequence[Finding]") -> None:
    """Write a line for each finding, and below it what to do."""
    lines = list(_to_lines(findings))
    levels = max(map(len, CODES))
    width = max(len(name) for _, name, _, _ in lines)
    for level, name, seen, remedy in lines:
        sys.stdout.write(f"{level:<{levels}}  {clean(name):<{width}}  {clean(seen)}\n")
        if remedy:
            sys.stdout.write(f"{'':<{levels + width + 2}}  do: {clean(remedy)}\n")

    counts = {level: sum(finding.level == level for finding in findings) for level in reversed(CODES)}
    summary = ", ".join(f"{count} {level}" for level, count in counts.items() if count)
    echo_err(f"{plural(len(findings), 'finding')}: {summary}")


def _to_lines(findings: "Sequence[Finding]") -> "Iterator[tuple[str, str, str, str]]":
    """Give level, name, what was seen and what to do; checks that could not be made for one reason are joined."""
    from starter.insight.doctor.checks import NOT_LOOKED_AT

    for seen, group in groupby(findings, key=lambda finding: finding.seen):
        first, *others = group
        if others and seen.startswith(NOT_LOOKED_AT):
            checks = ", ".join(finding.check for finding in (first, *others))
            yield first.level, "the rest", f"{checks} {seen}", first.remedy
        else:
            for finding in (first, *others):
                yield finding.level, f"{finding.check} {finding.about}".rstrip(), seen, finding.remedy
