"""The commands `dormice spark …`; the command line finds this module by its name."""

from spark.commands_prepare import add_prepare
from spark.commands_reconcile import add_reconcile
from spark.commands_report import add_report
from spark.commands_start import add_start
from starter.commands.arguments import Commands


def add_spark(commands: Commands) -> None:
    """Add the group `spark`."""
    group = commands.add_group(
        "spark", "millions of rows at once: a manifest of them, its start, its proof, its report"
    )
    add_prepare(group)
    add_start(group)
    add_reconcile(group)
    add_report(group)
