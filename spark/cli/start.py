"""The command `spark start`."""

import os
from typing import TYPE_CHECKING

from click import option

from shared.exit import FINE, PARTLY
from shared.settings import Settings
from spark.cli.session import BRIEF, manifest_argument, open_session, session_options, spark
from starter.cli.arguments import COUNT, Arguments
from starter.local.terminal import echo_err, plural, print_json

if TYPE_CHECKING:
    from spark.prepare.manifest import Manifest
    from spark.start import StartSummary

START_HELP = """\
What became of each message is written to MANIFEST/receipts. An interrupted start is given again: it goes on with what
has no receipt, and starts nothing twice. The setting starts_per_second is shared by all tasks."""


@spark.command("start", epilog=START_HELP)
@manifest_argument
@option("--tasks", **COUNT, help="tasks that share the messages; by their number when left out")
@option("--retry-rejected", is_flag=True, help="try once more what was rejected")
@option("--restart-finished", is_flag=True, help="start messages anew that have finished")
@session_options
def run(args: Arguments, settings: Settings) -> int:
    """Start the messages of a manifest; running it again starts what is left."""
    from spark.prepare.manifest import Manifest

    manifest = Manifest.load(args.manifest)
    with open_session(args, settings, defaults=BRIEF) as session:
        from spark.start import StartOptions, start_manifest  # needs pyspark, and the session reports its absence

        options = StartOptions(
            tasks=args.tasks, retries_rejected=args.retry_rejected, restarts_finished=args.restart_finished
        )
        summary = start_manifest(session, manifest, settings, os.environ, options)
    _report(args, manifest, summary)
    return FINE if summary.is_clean else PARTLY


def _report(args: Arguments, manifest: "Manifest", summary: "StartSummary") -> None:
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
