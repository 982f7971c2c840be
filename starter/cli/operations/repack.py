"""The command `repack`."""

import argparse

from shared.settings import Settings
from starter.cli.arguments import COUNT, Commands
from starter.cli.connection import open_client
from starter.cli.exit_codes import FINE
from starter.local.terminal import echo_err, plural, print_json

TOLD_EVERY = 100


def add(commands: Commands) -> None:
    parser = commands.add("repack", _run, "spread a packed kind over more packs while it runs; safe to repeat")
    parser.add_argument("kind", metavar="KIND", help="a kind whose handler declares encoding=Pack(…)")
    parser.add_argument("--packs", **COUNT, required=True, help="how many it is to have")


async def _run(args: argparse.Namespace, settings: Settings) -> int:
    from starter.steering.repack import repack

    def show(done: int, total: int) -> None:
        if done % TOLD_EVERY == 0 and done < total:
            echo_err(f"repack: {done:,} of {plural(total, 'pack')} done")

    before = await repack(await open_client(settings), settings, args.kind, args.packs, show)
    if args.json:
        print_json({"kind": args.kind, "packs_before": before, "packs": args.packs})
    advice = f"write Pack(packs={args.packs}) at its handler"
    echo_err(f"kind {args.kind}: {before:,} packs before, {args.packs:,} now; {advice}")
    return FINE
