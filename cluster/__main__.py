"""`./run cluster up|down|status`: Temporal's server on PostgreSQL, without Docker."""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.cluster import SHARDS, Cluster, find_folder
from cluster.program import VERSION, build_program
from shared.errors import DormiceError
from shared.exit import FINE, INTERRUPTED, PARTLY, PIPE_CLOSED, code_of, find_stop_signals
from starter.cli.arguments import CommandParser, count
from starter.local.terminal import echo_err, print_fields, print_json


def main(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code."""
    try:
        args = _build_parser().parse_args(arguments)
        return args.run(Cluster(args.data.absolute()), args)
    except SystemExit as exc:  # argparse exits so after --help
        return exc.code if isinstance(exc.code, int) else FINE
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        echo_err("cluster: interrupted; './run cluster status' shows what runs")
        return INTERRUPTED
    except DormiceError as exc:
        echo_err(f"cluster: {exc}")
        return code_of(exc)


def _build_parser() -> CommandParser:
    parser = CommandParser(prog="./run cluster", description=f"Temporal's server {VERSION} on PostgreSQL, on loopback.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)

    for name, run, purpose in (
        ("up", _run_up, "run it; made first, and the server built with Go, where that has not been done"),
        ("down", _run_down, "end it; its messages stay"),
        ("status", _run_status, "tell what runs; exit code 1 when it does not"),
    ):
        command = commands.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        command.add_argument(
            "--data", metavar="FOLDER", type=Path, default=find_folder(), help="where it lives (%(default)s)"
        )
        command.set_defaults(run=run)
        if name == "up":
            command.add_argument("--shards", metavar="N", type=count, help=f"history shards, fixed for good ({SHARDS})")
        if name == "down":
            command.add_argument("--delete", action="store_true", help="and delete it, with all its messages")
        if name == "status":
            command.add_argument("--json", action="store_true", help="print data as JSON, on standard output alone")

    return parser


def _run_up(cluster: Cluster, args: argparse.Namespace) -> int:
    asyncio.run(cluster.up(build_program(), args.shards))
    echo_err(f"up; export TEMPORAL_ADDRESS={cluster.address}")
    return FINE


def _run_down(cluster: Cluster, args: argparse.Namespace) -> int:
    cluster.down(is_deleting=args.delete)
    said = "down, and deleted" if args.delete else "down"
    echo_err(said)
    return FINE


def _run_status(cluster: Cluster, args: argparse.Namespace) -> int:
    state = cluster.state
    process = cluster.process
    found = {
        "folder": str(cluster.folder),
        "version": state.version if state else None,
        "shards": state.shards if state else None,
        "address": cluster.address if state else None,
        "server": process.pid if process else None,
        "postgres": cluster.postgres.process_id if state else None,
        "postgres_port": state.ports["postgres"] if state else None,
        "log": str(cluster.log),
    }

    if args.json:
        print_json(found)
    else:
        print_fields((name, "-" if value is None else str(value)) for name, value in found.items())

    return FINE if found["server"] and found["postgres"] else PARTLY


if __name__ == "__main__":
    for number in find_stop_signals():
        signal.signal(number, signal.default_int_handler)
    code = main(sys.argv[1:])
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(code)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
