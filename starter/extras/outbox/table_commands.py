"""The commands `outbox ddl` and `outbox status`, about the table of an outbox."""

import argparse
import sys
from typing import TYPE_CHECKING

from shared.exit import FINE
from shared.messages.placement import workflow_id
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import COUNT, Commands
from starter.extras.outbox.command import add_connection, add_table, read_connection, read_table
from starter.local.terminal import echo_err, plural, print_fields, print_json, print_table

if TYPE_CHECKING:
    from starter.extras.outbox.backlog import FailedRow

_HEADER = ("SEQ", "ACTION", "MESSAGE", "INSERTED", "FAILED", "PROBLEM")


def add(commands: Commands) -> None:
    parser = commands.add("outbox ddl", _run_ddl, "print the SQL that makes the table", prints_data=False)
    add_table(parser)
    parser = commands.add("outbox status", _run_status, "show what the table holds, and rows that failed")
    add_connection(parser)
    parser.add_argument("--limit", **COUNT, default=50, help="most rows that failed (50)")


def _run_ddl(args: argparse.Namespace, settings: Settings) -> int:  # noqa: ARG001 — as every command
    sys.stdout.write(read_table(args).ddl)
    return FINE


async def _run_status(args: argparse.Namespace, settings: Settings) -> int:
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
