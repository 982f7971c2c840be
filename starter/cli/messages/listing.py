"""The command `list`."""

import sys
from typing import TYPE_CHECKING

from click import option

from shared.errors import InvalidSetting
from shared.exit import FINE, UNREACHABLE
from shared.messages.placement import workflow_id
from shared.messages.timespan import format_moment
from shared.settings import Settings
from starter.cli.arguments import COUNT, Arguments, due_before_option, filter_options, read_filter
from starter.cli.connection import open_client
from starter.cli.interruption import run_until_signal
from starter.cli.messages.following import Following
from starter.cli.program import program
from starter.local.terminal import describe_distance, echo_err, print_json, print_table

if TYPE_CHECKING:
    from temporalio.client import Client

    from starter.control import Control
    from starter.steering.selection import Selection
    from starter.steering.status.listing import ListedMessage

LIMIT = 50

EPILOG = """\
IN says "soon" where the index does not know when: such a message is due by now, or within a minute or so, because
moves by less than the setting index_after are not indexed. With --json its due_at is null and is_due_soon true.
'dormice show' asks the message itself.

--follow compares the list with what it was two seconds before, or longer if it is long. It can't see what the index
does not show: that lags by a moment, messages that come back every few seconds seem to stand still, and one that begins
and ends between two looks is not seen. Of more than 1,000 messages it follows those in front, where what has newly
begun is; "seen" is then one that was not there before."""


@program.command("list", epilog=EPILOG)
@filter_options
@due_before_option
@option("--limit", **COUNT, help=f"most messages to list ({LIMIT})")
@option("--count", is_flag=True, help="only count them; beyond 200 packs about")
@option("--follow", "-f", is_flag=True, help="print what comes, changes or ends, until Ctrl-C")
@option("--exact", is_flag=True, help="with --count: ask every pack, which needs workers")
async def run(args: Arguments, settings: Settings) -> int:
    """List messages, newest start first; the index may lag a little."""
    from starter.control import Control
    from starter.steering.status.listing import describe_left_out

    _check(args)
    client = await open_client(settings)
    selection = read_filter(args)
    control = Control(client, settings)
    if args.follow:
        await run_until_signal(_follow(client, control, settings, args))
        return FINE
    if args.count:
        return await _count(control, selection, args)
    found: list[ListedMessage] = []
    left_out = list[str]()
    shown = 0
    limit = args.limit or LIMIT
    async for listed in control.list(selection, limit, left_out.append):
        shown += 1
        if args.json:
            print_json(listed.to_document())
        else:
            found.append(listed)
    if found:
        print_table(("MESSAGE", "LANE", "STATE", "DUE", "IN"), map(_to_cells, found), cuts_names=True)
    if left_out:
        echo_err(f"dormice: {describe_left_out(left_out)}")
    elif shown == 0:
        echo_err("no message matches")
    if shown == limit and (total := await control.estimate(selection)).number > shown:
        echo_err(f"{shown:,} of {total.describe()}; --limit N lists more")
    return UNREACHABLE if left_out else FINE


def _check(args: Arguments) -> None:
    if args.exact and not args.count:
        raise InvalidSetting("--exact: goes with --count; a list is always exact")
    if args.follow and (args.count or args.limit):
        other = "--count" if args.count else "--limit"
        raise InvalidSetting(f"--follow: goes on without {other}; leave one of them out")


async def _follow(client: "Client", control: "Control", settings: Settings, args: Arguments) -> None:
    from starter.steering.packs.packs import Packs
    from starter.steering.pages import MessagePages

    pages = MessagePages(client, Packs(client, settings), read_filter(args))
    await Following(control, pages, args.json).run()


async def _count(control: "Control", selection: "Selection", args: Arguments) -> int:
    from starter.steering.stored.memo_counts import MessageCount

    found = MessageCount(await control.count(selection)) if args.exact else await control.estimate(selection)
    if args.json:
        print_json(found.to_document())
        return FINE
    sys.stdout.write(f"{found.describe()}\n")
    if not found.is_exact:
        echo_err(f"{found.explain()}; --exact asks every pack")
    return FINE


def _to_cells(listed: "ListedMessage") -> tuple[str, ...]:
    due = "-"
    distance = "-"
    if listed.is_due_soon:
        distance = "soon"
    elif listed.state == "active" and listed.due_at is not None:
        due = format_moment(listed.due_at.timestamp())
        distance = describe_distance(listed.due_at)
    return workflow_id(listed.kind, listed.id), listed.lane, listed.state, due, distance
