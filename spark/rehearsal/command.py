"""The command `spark rehearse`; found by an entry point of its own, and added to the other commands of Spark."""

from shared.exit import FINE
from shared.settings import Settings
from spark.cli.session import open_session, read_conf, session_options, spark
from starter.cli.arguments import Arguments
from starter.extras.rehearsal.command import REHEARSE_HELP, read_columns, read_options, rehearsal_options, report


@spark.command("rehearse", epilog=REHEARSE_HELP)
@rehearsal_options("a file, a folder or a pattern of CSV, JSON lines or Parquet")
@session_options
def run(args: Arguments, settings: Settings) -> int:
    """Tell how revisit policies would have done on a history of changes of millions of pages."""
    from spark.session.session import reads_local_files
    from spark.source.local_files import check_local_files
    from starter.extras.rehearsal.history_file import guess_form
    from starter.extras.rehearsal.rehearsal import rehearse

    options = read_options(args)
    columns = read_columns(args)
    guess_form(args.history)
    is_default = reads_local_files(settings, master=args.master, conf=read_conf(args))
    check_local_files(args.history, is_default=is_default)
    with open_session(args, settings) as session:
        from spark.rehearsal.histories import SparkHistories  # needs pyspark, and the session reports its absence

        found = rehearse(SparkHistories.load(session, args.history, columns), options)
    report(args, found)
    return FINE
