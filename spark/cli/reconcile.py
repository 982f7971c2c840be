"""The command `spark reconcile`."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shared.exit import FINE, PARTLY
from shared.messages.placement import workflow_id
from shared.settings import Settings
from spark.cli.session import BRIEF, manifest_argument, open_session, session_options, spark
from starter.cli.arguments import Arguments
from starter.cli.connection import open_control
from starter.cli.interruption import run_in_background, run_interruptibly
from starter.local.terminal import echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from spark.prepare.manifest import Manifest
    from spark.report.reconcile import Reconciliation


@spark.command("reconcile")
@manifest_argument
@session_options
def run(args: Arguments, settings: Settings) -> int:
    """Prove that each row of a manifest's source is where it should be, or say which is not."""
    from spark.prepare.manifest import Manifest
    from spark.report.reconcile import open_known

    manifest = Manifest.load(args.manifest)
    # Spark starts while the server lists: each alone takes long, and Spark's start mostly waits for Java
    with (
        open_known(manifest) as known,
        run_in_background(_list(manifest, settings, known)) as listing,
        open_session(args, settings, defaults=BRIEF) as session,
    ):
        balance = run_interruptibly(_compare(session, manifest, settings, known, listing))
    _report(args, manifest, balance)
    return FINE if balance.is_complete else PARTLY


async def _list(manifest: "Manifest", settings: Settings, known: Path) -> None:
    from spark.report.reconcile import list_known

    await list_known(await open_control(settings), manifest, known)


async def _compare(
    session: "SparkSession", manifest: "Manifest", settings: Settings, known: Path, listing: "Future[None]"
) -> "Reconciliation":
    from spark.report.reconcile import compare

    await asyncio.wrap_future(listing)
    return await compare(session, manifest, await open_control(settings), known)


def _report(args: Arguments, manifest: "Manifest", balance: "Reconciliation") -> None:
    if args.json:
        print_json({"manifest": manifest.id, **asdict(balance), "is_complete": balance.is_complete})
    else:
        places = ("alive", "finished", "stopped", "rejected", "duplicates", "missing")
        print_table(("WHERE", "ROWS"), [(place, f"{getattr(balance, place):,}") for place in places])
    for flaw in balance.flaws:
        echo_err(f"dormice: {flaw}")
    for found in balance.examples:
        echo_err(f"row {found.row}: {workflow_id(found.kind, found.id)} {found.problem}")
    if balance.missing > len(balance.examples):
        from spark.report.reconcile import DIFFERENCES

        echo_err(f"all {balance.missing:,} differences: {manifest.folder / DIFFERENCES}")
    verdict = "complete, nothing is missing" if balance.is_complete else "not complete"
    echo_err(f"{plural(balance.rows, 'row')} of {manifest.source}: {verdict}")
