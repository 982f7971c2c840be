"""The command `repack`."""

# ruff: noqa: PLC0415 — what is slow to import waits until its command runs

import argparse

from shared.settings import Settings
from starter.cli import arguments
from starter.cli.arguments import Commands
from starter.cli.exit_codes import FINE
from starter.cli.interruption import run_interruptibly
from starter.screen import echo_err, plural, print_json

TOLD_EVERY = 100


def add_repack(commands: Commands) -> None:
    """Add `repack`."""
    parser = commands.add("repack", run_repack, "spread a packed kind over more packs while it runs; safe to repeat")
    parser.add_argument("kind", metavar="KIND", help="a kind whose handler declares encoding=Pack(…)")
    parser.add_argument("--packs", metavar="N", type=arguments.count, required=True, help="how many it is to have")


def run_repack(args: argparse.Namespace, settings: Settings) -> int:
    """Change a kind's number of packs, and print the old number and the new one."""
    before = run_interruptibly(_repack(args, settings))
    if args.json:
        print_json({"kind": args.kind, "packs_before": before, "packs": args.packs})
    echo_err(
        f"kind {args.kind}: {before:,} packs before, {args.packs:,} now; write Pack(packs={args.packs}) at its handler"
    )
    return FINE


async def _repack(args: argparse.Namespace, settings: Settings) -> int:
    from starter.cli.connection import open_client
    from starter.steering.repack import repack

    def show(done: int, total: int) -> None:
        if done % TOLD_EVERY == 0 and done < total:
            echo_err(f"repack: {done:,} of {plural(total, 'pack')} done")

    return await repack(await open_client(settings), settings, args.kind, args.packs, show)
