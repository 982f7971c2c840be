"""The command `spark start`."""

import argparse
import os
from typing import TYPE_CHECKING

from shared.exit import FINE, PARTLY
from shared.settings import Settings
from spark.cli.session import BRIEF, add_manifest, add_session, open_session
from starter.cli.arguments import COUNT, Commands
from starter.local.terminal import echo_err, plural, print_json

if TYPE_CHECKING:
    from spark.prepare.manifest import Manifest
    from spark.start import StartSummary

START_HELP = """\
What became of each message is written to MANIFEST/receipts. An interrupted start is given again: it goes on with what
has no receipt, and starts nothing twice. The setting starts_per_second is shared by all tasks."""


def add(commands: Commands) -> None:
    purpose = "start the messages of a manifest; running it again starts what is left"
    parser = commands.add("start", _run, purpose, START_HELP)
    add = parser.add_argument
    add_manifest(parser)
    add("--tasks", **COUNT, help="tasks that share the messages; by their number when left out")
    add("--retry-rejected", action="store_true", help="try once more what was rejected")
    add("--restart-finished", action="store_true", help="start messages anew that have finished")
    add_session(parser)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from spark.prepare.manifest import Manifest

    manifest = Manifest.load(args.manifest)
    with open_session(args, settings, defaults=BRIEF) as spark:
        from spark.start import StartOptions, start_manifest  # needs pyspark, and the session reports its absence

        options = StartOptions(
            tasks=args.tasks, retries_rejected=args.retry_rejected, restarts_finished=args.restart_finished
        )
        summary = start_manifest(spark, manifest, settings, os.environ, options)
    _report(args, manifest, summary)
    return FINE if summary.is_clean else PARTLY


def _report(args: argparse.Namespace, manifest: "Manifest", summary: "StartSummary") -> None:
    if args.json:
        print_json(summary.dump())

    rate = summary.now.total / summary.seconds
    echo_err(
        f"{plural(summary.now.total, 'message')}: {summary.now.describe()} in {summary.seconds:.1f} s, "
        f"{rate:,.0f} a second"
    )
    if summary.in_all != summary.now:
        echo_err(f"with all starts before: {summary.in_all.describe()}")
    if summary.in_all.rejected:
        echo_err(f"reasons of what was rejected: {manifest.folder / 'receipts'}")
    if summary.missing:
        echo_err(f"dormice: {plural(summary.missing, 'message')} without a receipt; run the same command again")
