"""The commands `dormice spark …`; the command line finds this module by its name."""

from spark.cli.prepare import add_prepare
from spark.cli.reconcile import add_reconcile
from spark.cli.report import add_report
from spark.cli.start import add_start
from starter.cli.arguments import Commands


def add_spark(commands: Commands) -> None:
    """Add the group `spark`."""
    group = commands.add_group(
        "spark", "millions of rows at once: a manifest of them, its start, its proof, its report"
    )
    add_prepare(group)
    add_start(group)
    add_reconcile(group)
    add_report(group)
