"""The command `outbox`."""

import asyncio
from typing import TYPE_CHECKING

from click import argument, option

from shared.errors import InvalidSetting, check_extra
from shared.exit import FINE, PARTLY
from shared.settings import Settings, find_secret
from starter.cli.arguments import SECONDS, Arguments, complete_second_word, join, read_seconds
from starter.cli.interruption import drain_at_signal
from starter.cli.program import program
from starter.extras.outbox.table import TABLE, OutboxTable
from starter.local.terminal import echo_err, plural
from worker.options import health_options

if TYPE_CHECKING:
    from starter.extras.outbox.connection import OutboxConnection
    from starter.extras.outbox.outbox import OutboxOptions

OUTBOX_HELP = """\
An application inserts a row in the transaction of its own change; 'dormice outbox ddl' prints the table. The row is
deleted once the server has stored what it asks for: start, upsert or stop of a message. Several outboxes may run side
by side. A row that can't become a message stays, with its problem: see 'dormice outbox status'.

DSN is like postgresql://USER@HOST/DATABASE. Left out, it is that of the setting outbox_dsn, which may hold the
password; so may PGPASSWORD or ~/.pgpass. SIGTERM and Ctrl-C drain, a second one leaves at once."""


table_option = option("--table", metavar="NAME", default=TABLE, help=f"NAME or SCHEMA.NAME of the table ({TABLE})")
connection_options = join(
    argument("dsn", required=False, shell_complete=complete_second_word, help="the database, without a password"),
    table_option,
)


def read_table(args: Arguments) -> OutboxTable:
    """Read the name of the table; raises InvalidSetting."""
    try:
        return OutboxTable.read(args.table)
    except ValueError as exc:
        raise InvalidSetting(f"--table: {exc}") from exc


def read_connection(args: Arguments, settings: Settings) -> "OutboxConnection":
    """Read where the database is; raises InvalidSetting, and Misconfigured without psycopg."""
    check_extra("outbox", "the outbox", "psycopg")
    from starter.extras.outbox.connection import OutboxConnection

    table = read_table(args)
    dsn = args.dsn
    if dsn is None and not (dsn := find_secret(settings, "outbox_dsn")):
        raise InvalidSetting("outbox_dsn: is missing; give DSN, or set DORMICE_OUTBOX_DSN or DORMICE_OUTBOX_DSN_FILE")
    connection = OutboxConnection.read(dsn, table)
    if args.dsn is not None and connection.has_password:
        flaw = "holds a password, which everybody on this machine sees in the list of processes"
        raise InvalidSetting(
            f"DSN: {flaw}; put it into DORMICE_OUTBOX_DSN, a file of DORMICE_OUTBOX_DSN_FILE, or ~/.pgpass"
        )
    return connection


@program.command("outbox", epilog=OUTBOX_HELP, prints_data=False)
@connection_options
@option("--once", is_flag=True, help="end when no row is left that can be taken")
@option("--poll-seconds", **SECONDS, default=5.0, help="look so often though nothing tells of new rows (5)")
@option("--drain-seconds", **SECONDS, default=30.0, help="what is under way gets to finish (30)")
@health_options("/healthz, /readyz and /status")
def run(args: Arguments, settings: Settings) -> int:
    """Turn the rows of a table in PostgreSQL into messages until SIGTERM or Ctrl-C."""
    from shared.telemetry.logs import set_up_logs
    from worker.process import new_event_loop

    set_up_logs(settings)
    connection = read_connection(args, settings)
    from starter.extras.outbox.outbox import OutboxOptions

    options = OutboxOptions(
        poll=read_seconds("poll-seconds", args.poll_seconds),
        drain=read_seconds("drain-seconds", args.drain_seconds),
        is_once=args.once,
    )
    address = None if args.health_port is None else (args.health_host, args.health_port)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(connection, options, settings, address))


async def _serve(
    connection: "OutboxConnection", options: "OutboxOptions", settings: Settings, address: tuple[str, int] | None
) -> int:
    from activities.registry import load_registry
    from shared.telemetry.sdk import start_telemetry
    from shared.temporal.connect import check_server, connect
    from starter.extras.outbox.batch import BatchSender
    from starter.extras.outbox.outbox import Outbox
    from starter.extras.outbox.status import OutboxReadiness, publish_regularly
    from starter.starting.receipts import StartOutcome
    from worker.health import open_endpoint, watch_server
    from worker.main import alongside

    stopping = asyncio.Event()
    readiness = OutboxReadiness(stopping.is_set)
    with start_telemetry(settings, "dormice-outbox") as telemetry:
        async with open_endpoint(address, readiness.report, {"/status": readiness.report_status}):
            found = await connection.check()
            client = await connect(settings)
            await check_server(client)
            sender = BatchSender.of(client, settings, load_registry(settings), found.source)
            outbox = Outbox(connection, found.oid, sender, options)
            readiness.outbox = outbox
            async with alongside(watch_server(client, readiness, telemetry), publish_regularly(outbox, telemetry)):
                drain_at_signal(stopping)
                await outbox.run(stopping)
    failed = outbox.counts[StartOutcome.REJECTED]
    done = plural(outbox.counts.total() - failed - outbox.counts[StartOutcome.FAILED], "row")
    stay = "stays" if failed == 1 else "stay"
    more = f", {plural(failed, 'row')} failed and {stay}" if failed else ""
    how = "ended" if options.is_once else "drained"
    echo_err(f"{how}; {done} done{more}")
    return PARTLY if options.is_once and failed else FINE
