"""The command `spark prepare`."""

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from click import Choice, argument, option

from shared.exit import FINE, PARTLY
from shared.settings import Settings
from spark.cli.session import open_session, read_conf, read_pairs, session_options, spark
from starter.cli.arguments import COUNT, DURATION, FOLDER, MOMENT, Arguments, read_row_mapping, row_mapping_options
from starter.files.duplicates import DUPLICATE_RULES
from starter.local.terminal import echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from spark.prepare.manifest import Manifest
    from spark.source.source import Source

PREPARE_HELP = """\
SOURCE is a file, a folder or a pattern (CSV, JSON lines, Parquet), a database (jdbc:postgresql://HOST/NAME with
--table, settings jdbc_user and jdbc_password) or a topic (kafka:TOPIC, settings kafka_…). Columns or members named
like fields of the envelope fill those; with --id-from a row is any JSON object, and PART a JSON pointer like /user/id
(in a record also key or header:NAME).

MANIFEST gets messages/ and rejects/ as Parquet, manifest.json, summary.json, due.csv and due.png. A row that can't
become a message is among the rejects with its field and reason. Of several rows with one kind and id one counts."""


@spark.command("prepare", epilog=PREPARE_HELP)
@argument("source", type=click.Path(), help="where the rows are")
@argument("manifest", **FOLDER, help="folder to write; all executors must have it mounted")
@option(
    "--format", type=Choice(("csv", "jsonl", "parquet", "jdbc", "kafka")), help="by the source's name when left out"
)
@option("--multi-line", is_flag=True, help="cells of the CSV may span lines; it is read by one task then")
@option("--table", metavar="TABLE|QUERY", default="", help="what to read of a database; a query may order its rows")
@option("--since", **MOMENT, help="records of the topic from then on; all when left out")
@option("--until", **MOMENT, help="records of the topic before then; all when left out")
@option("--option", metavar="NAME=VALUE", multiple=True, help="option of Spark's reader; may be repeated")
@row_mapping_options
@option("--duplicates", type=Choice(DUPLICATE_RULES), default="newest", help="which row counts (newest scheduled_at)")
@option("--spread", **DURATION, help="spread first runs that are due at once over it")
@option("--begin", **MOMENT, help="when the spread begins; now when left out")
@option("--partitions", **COUNT, help="number of tasks; the content is the same for any")
@session_options
def run(args: Arguments, settings: Settings) -> int:
    """Check all rows of a source and write the manifest of a bulk start."""
    from spark.session.session import check_installed

    check_installed()  # the readers of rows need pyarrow as soon as they are imported
    from activities.registry import envelope_rules, load_registry
    from spark.prepare.prepare import PrepareOptions, check_target, prepare
    from spark.prepare.summary import read_summary
    from spark.source.source import packages_for

    options = PrepareOptions(
        rules=envelope_rules(settings, load_registry(settings)),
        duplicates=args.duplicates,
        spread=args.spread or timedelta(0),
        begin=args.begin or datetime.now(UTC),
        partitions=args.partitions,
    )
    source = _to_source(args, settings)
    source.mapping.options.check_kind(options.rules)
    check_target(args.manifest)
    _check_files(args, settings, source)
    with open_session(args, settings, packages_for(source.place)) as session:
        began_at = time.monotonic()  # without the start of Spark, as for the other commands
        manifest = prepare(session, source, args.manifest, options)
        seconds = time.monotonic() - began_at
    _report(args, manifest, read_summary(manifest), seconds)
    return PARTLY if manifest.rejects else FINE


def _to_source(args: Arguments, settings: Settings) -> "Source":
    from spark.source.source import Source, guess_form

    return Source(
        place=args.source,
        form=args.format or guess_form(args.source),
        mapping=read_row_mapping(args),
        spans_lines=args.multi_line,
        table=args.table,
        since=args.since,
        until=args.until,
        settings=settings,
        reader_options=read_pairs("--option", args.option, "encoding=ISO-8859-1"),
    )


def _check_files(args: Arguments, settings: Settings, source: "Source") -> None:
    """Raise GiveUp before Spark starts, which takes long, for files that are not there or can't be read."""
    from spark.session.session import reads_local_files
    from spark.source.local_files import check_local_files

    if source.form not in ("jdbc", "kafka"):
        is_default = reads_local_files(settings, master=args.master, conf=read_conf(args))
        check_local_files(source.place, is_default=is_default)


def _report(args: Arguments, manifest: "Manifest", summary: dict[str, Any], seconds: float) -> None:
    if args.json:
        print_json({**summary, "folder": str(manifest.folder), "seconds": round(seconds, 3)})
    else:
        counts = [(row["kind"], row["lane"], f"{row['messages']:,}") for row in summary["by_kind_and_lane"]]
        print_table(("KIND", "LANE", "MESSAGES"), counts)
        reasons = [(r["field"], r["flaw"], f"{r['rows']:,}", r["example"]) for r in summary["reject_reasons"]]
        if reasons:
            print_table(("REJECTED", "FLAW", "ROWS", "FOR EXAMPLE"), reasons)

    echo_err(
        f"{plural(manifest.rows, 'row')}: {plural(manifest.messages, 'message')}, {manifest.rejects:,} rejected, "
        f"{plural(manifest.duplicates, 'duplicate')} in {seconds:.1f} s"
    )
    echo_err(f"manifest {manifest.id}: {manifest.folder}")
