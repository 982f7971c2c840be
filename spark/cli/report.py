"""The command `spark report`."""

import argparse
from pathlib import Path

from shared.exit import FINE
from shared.settings import Settings
from spark.cli.session import add_manifest, add_session, open_session
from starter.cli.arguments import Commands
from starter.local.terminal import echo_err, print_json, print_table

REPORT_HELP = """\
Outcomes are events as dormice writes them: a Parquet file or folder, JSON lines, or kafka:TOPIC. Without them the
report tells of rows, rejects and starts alone."""


def add(commands: Commands) -> None:
    purpose = "tell what became of a manifest: tables in Parquet and a page to read"
    parser = commands.add("report", _run, purpose, REPORT_HELP)
    add = parser.add_argument
    add_manifest(parser)
    add("--outcomes", metavar="PATH|kafka:TOPIC", help="events of what cycles came to")
    add("--out", metavar="FOLDER", type=Path, help="where the report goes; MANIFEST/report when left out")
    add_session(parser)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    from spark.prepare.manifest import Manifest
    from spark.report.report import make_report, read_outcomes

    manifest = Manifest.load(args.manifest)
    folder = (args.out or args.manifest / "report").resolve()
    with open_session(args, settings) as spark:
        outcomes = None if args.outcomes is None else read_outcomes(spark, args.outcomes, settings)
        tables = make_report(spark, manifest, outcomes, folder)
    if args.json:
        print_json({t.name: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in tables})
    else:
        print_table(("WHAT", "ROWS"), [(what, f"{count:,}") for what, count in tables[0].rows])
    echo_err(f"report: {folder / 'report.html'}")
    return FINE
