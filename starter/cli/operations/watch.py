"""The command `watch`."""

import asyncio
import functools
from datetime import timedelta
from typing import TYPE_CHECKING

from click import option

from shared.errors import InvalidSetting
from shared.exit import FINE
from shared.messages.timespan import format_seconds
from shared.settings import Settings
from starter.cli.arguments import DURATION, Arguments, filter_options
from starter.cli.connection import open_client
from starter.cli.interruption import call_at_signals
from starter.cli.program import program
from starter.local.disk import find_full_disk_of
from starter.local.terminal import has_foreground
from starter.steering.selection import Selection

if TYPE_CHECKING:
    from starter.insight.board.reader import BoardReader

INTERVAL_MIN = timedelta(seconds=0.5)
INTERVAL_MAX = timedelta(hours=1)

EPILOG = """\
On a terminal it keeps a board up to date: what is wrong first (lanes that stand still or are behind, workers that have
gone, reasons of parked messages, closed gates), then counts, lanes and what is due. Into a pipe it writes a line for
each look, with --json a document. Many packs are counted about, by their memos. What takes long to read is read less
often. CALLS/S is what workers have finished between their last two heartbeats, of packs in batches. While the server is
away it says so, and goes on when it is back. q and Ctrl-C end it, with exit code 0."""


@program.command("watch", epilog=EPILOG)
@filter_options
@option("--interval", **DURATION, default="2s", help="time between two looks (2s)")
@option("--once", is_flag=True, help="look once")
async def run(args: Arguments, settings: Settings) -> int:
    """Watch messages and lanes on a board that follows: what is wrong, counts, lanes, what is due."""
    from starter.insight.board.reader import BoardReader

    if not INTERVAL_MIN <= args.interval <= INTERVAL_MAX:
        given = format_seconds(args.interval.total_seconds())
        raise InvalidSetting(f"--interval: is {given}; give 500ms to 1h")
    stopping = asyncio.Event()
    call_at_signals(stopping.set)
    client = await open_client(settings, is_starting=True, watches_disk=False)  # the board does
    find_full_disk = functools.partial(find_full_disk_of, client.service_client.config.target_host)
    selection = Selection(kind=args.kind, lane=args.lane, state=args.state)
    reader = BoardReader(client, settings, selection, args.interval.total_seconds(), find_full_disk)
    if args.once:
        await _show_once(reader, is_json=args.json)
    else:
        await _follow(reader, args, stopping)
    return FINE


async def _show_once(reader: "BoardReader", *, is_json: bool) -> None:
    from rich.console import Console

    from starter.insight.board.display import write_status
    from starter.insight.board.view import draw

    await reader.read_once()
    if is_json or not has_foreground():
        write_status(reader, is_json=is_json)
    else:
        Console().print(draw(reader.status()))


async def _follow(reader: "BoardReader", args: Arguments, stopping: asyncio.Event) -> None:
    from rich.console import Console

    from starter.insight.board.display import Display, taking_keys
    from starter.insight.board.view import describe_interval

    interval = args.interval.total_seconds()
    display = Display(reader, interval, stopping)
    async with reader.reading():
        if args.json or not has_foreground():
            await display.write(is_json=args.json)
        else:
            with taking_keys({"q": stopping.set}):
                await display.draw(Console(), describe_interval(interval), is_alone=True)
