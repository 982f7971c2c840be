"""The commands `outbox ddl` and `outbox status`, about the table of an outbox."""

import sys
from typing import TYPE_CHECKING

from click import option

from shared.exit import FINE
from shared.messages.placement import workflow_id
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import COUNT, Arguments
from starter.cli.program import program
from starter.extras.outbox.command import connection_options, read_connection, read_table, table_option
from starter.local.terminal import echo_err, plural, print_fields, print_json, print_table

if TYPE_CHECKING:
    from starter.extras.outbox.backlog import FailedRow

_HEADER = ("SEQ", "ACTION", "MESSAGE", "INSERTED", "FAILED", "PROBLEM")


@program.command("outbox ddl", prints_data=False)
@table_option
def run_ddl(args: Arguments, settings: Settings) -> int:  # noqa: ARG001 — as every command
    """Print the SQL that makes the table."""
    sys.stdout.write(read_table(args).ddl)
    return FINE


@program.command("outbox status")
@connection_options
@option("--limit", **COUNT, default=50, help="most rows that failed (50)")
async def run_status(args: Arguments, settings: Settings) -> int:
    """Show what the table holds, and rows that failed."""
    connection = read_connection(args, settings)
    from starter.extras.outbox.backlog import count_rows, read_failed

    async with await connection.open_once() as database:
        with connection.translate_errors():
            backlog = await count_rows(database, connection.table)
            failed = await read_failed(database, connection.table, args.limit)
    if args.json:
        rows = [row._asdict() for row in failed]
        print_json({"table": str(connection.table), **backlog._asdict(), "failed_rows": rows})
        return FINE
    oldest = f", the oldest for {format_seconds(backlog.oldest_seconds)}" if backlog.waiting else ""
    print_fields([("waiting", f"{backlog.waiting:,}{oldest}"), ("failed", f"{backlog.failed:,}")])
    if failed:
        print_table(_HEADER, map(_to_cells, failed))
    if len(failed) < backlog.failed:
        echo_err(f"the first {plural(len(failed), 'row')} that failed; --limit N lists more")
    return FINE


def _to_cells(row: "FailedRow") -> tuple[str, ...]:
    return str(row.seq), row.action, workflow_id(row.kind, row.id), row.created_at, row.failed_at, row.problem
