"""The command `spark report`."""

from click import option

from shared.exit import FINE
from shared.settings import Settings
from spark.cli.session import manifest_argument, open_session, session_options, spark
from starter.cli.arguments import FOLDER, Arguments
from starter.local.terminal import echo_err, print_json, print_table

REPORT_HELP = """\
Outcomes are events as dormice writes them: a Parquet file or folder, JSON lines, or kafka:TOPIC. Without them the
report tells of rows, rejects and starts alone."""


@spark.command("report", epilog=REPORT_HELP)
@manifest_argument
@option("--outcomes", metavar="PATH|kafka:TOPIC", help="events of what cycles came to")
@option("--out", **FOLDER, help="where the report goes; MANIFEST/report when left out")
@session_options
def run(args: Arguments, settings: Settings) -> int:
    """Tell what became of a manifest: tables in Parquet and a page to read."""
    from spark.prepare.manifest import Manifest
    from spark.report.report import make_report, read_outcomes

    manifest = Manifest.load(args.manifest)
    folder = (args.out or args.manifest / "report").resolve()
    with open_session(args, settings) as session:
        outcomes = None if args.outcomes is None else read_outcomes(session, args.outcomes, settings)
        tables = make_report(session, manifest, outcomes, folder)
    if args.json:
        print_json({t.name: [dict(zip(t.columns, row, strict=True)) for row in t.rows] for t in tables})
    else:
        print_table(("WHAT", "ROWS"), [(what, f"{count:,}") for what, count in tables[0].rows])
    echo_err(f"report: {folder / 'report.html'}")
    return FINE
