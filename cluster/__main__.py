"""`./run cluster up|down|status`: Temporal's server on PostgreSQL, without Docker."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from click import Group, option

from cluster.cluster import SHARDS, Cluster, find_folder
from cluster.command_line import run_command, run_process
from cluster.program import VERSION, build_program
from shared.exit import FINE, PARTLY
from starter.cli.arguments import COUNT, FOLDER
from starter.local.terminal import echo_err, print_fields, print_json


def main(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code."""
    return run_command(commands, "cluster", arguments, "cluster: interrupted; './run cluster status' shows what runs")


commands = Group(help=f"Temporal's server {VERSION} on PostgreSQL, on loopback.", no_args_is_help=False)
data_option = option("--data", **FOLDER, default=find_folder(), help=f"where it lives ({find_folder()})")


@commands.command("up")
@data_option
@option("--shards", **COUNT, help=f"history shards, fixed for good ({SHARDS})")
def run_up(data: Path, shards: int | None) -> int:
    """Run it; made first, and the server built with Go, where that has not been done."""
    cluster = Cluster(data.absolute())
    asyncio.run(cluster.up(build_program(), shards))
    echo_err(f"up; export TEMPORAL_ADDRESS={cluster.address}")
    return FINE


@commands.command("down")
@data_option
@option("--delete", is_flag=True, help="and delete it, with all its messages")
def run_down(data: Path, *, delete: bool) -> int:
    """End it; its messages stay."""
    Cluster(data.absolute()).down(is_deleting=delete)
    said = "down, and deleted" if delete else "down"
    echo_err(said)
    return FINE


@commands.command("status")
@data_option
@option("is_json", "--json", is_flag=True, help="print data as JSON, on standard output alone")
def run_status(data: Path, *, is_json: bool) -> int:
    """Tell what runs; exit code 1 when it does not."""
    cluster = Cluster(data.absolute())
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

    if is_json:
        print_json(found)
    else:
        print_fields((name, "-" if value is None else str(value)) for name, value in found.items())

    return FINE if found["server"] and found["postgres"] else PARTLY


if __name__ == "__main__":
    run_process(main)
