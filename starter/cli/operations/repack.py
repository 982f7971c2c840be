"""The command `repack`."""

import time

from click import argument, option

from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import COUNT, Arguments
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import echo_err, plural, print_json

REPORTED_EVERY_SECONDS = 5.0


@program.command("repack")
@argument("kind", help="a kind whose handler declares encoding=Pack(…)")
@option("--packs", **COUNT, required=True, help="how many it is to have")
async def run(args: Arguments, settings: Settings) -> int:
    """Give a packed kind more packs at once, while it runs; safe to repeat."""
    from starter.steering.repack import repack

    reported_at = time.monotonic()

    def show(packs: int) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= REPORTED_EVERY_SECONDS and packs < args.packs:
            reported_at = time.monotonic()
            echo_err(f"repack: {packs:,} of {plural(args.packs, 'pack')}")

    before = await repack(await open_client(settings), settings, args.kind, args.packs, show)
    if args.json:
        print_json({"kind": args.kind, "packs_before": before, "packs": args.packs})
    echo_err(f"kind {args.kind}: {before:,} packs before, {args.packs:,} now")
    return FINE
