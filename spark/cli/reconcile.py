"""The command `spark reconcile`."""

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from shared.messages.placement import workflow_id
from shared.settings import Settings
from spark.cli.session import BRIEF, add_manifest, add_session, open_session
from starter.cli.arguments import Commands
from starter.cli.connection import open_control
from starter.cli.exit_codes import FINE, PARTLY
from starter.cli.interruption import run_interruptibly
from starter.terminal import echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.prepare.manifest import Manifest
    from spark.report.reconcile import Reconciliation


def add(commands: Commands) -> None:
    purpose = "prove that each row of a manifest's source is where it should be, or say which is not"
    parser = commands.add("reconcile", _run, purpose)
    add_manifest(parser)
    add_session(parser)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from spark.prepare.manifest import Manifest

    manifest = Manifest.load(args.manifest)
    with open_session(args, settings, defaults=BRIEF) as spark:
        balance = run_interruptibly(_reconcile(spark, manifest, settings))
    _report(args, manifest, balance)
    return FINE if balance.is_complete else PARTLY


async def _reconcile(spark: "SparkSession", manifest: "Manifest", settings: Settings) -> "Reconciliation":
    from spark.report.reconcile import reconcile

    return await reconcile(spark, manifest, await open_control(settings))


def _report(args: argparse.Namespace, manifest: "Manifest", balance: "Reconciliation") -> None:
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
