"""The commands `dormice spark …`; the command line finds this module by its entry point."""

from spark.cli import prepare, reconcile, report, start
from starter.cli.arguments import Commands


def add(commands: Commands) -> None:
    purpose = "millions of rows at once: a manifest, its start, its proof, its report; a rehearsal"
    group = commands.add_group("spark", purpose)
    for command in (prepare, start, reconcile, report):
        command.add(group)
