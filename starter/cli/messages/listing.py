"""The command `list`."""

import argparse
from typing import TYPE_CHECKING, Any

from shared.messages.placement import workflow_id
from shared.messages.timespan import format_moment
from shared.settings import Settings
from starter.cli.arguments import COUNT, Commands, add_filter, read_filter
from starter.cli.connection import open_control
from starter.cli.exit_codes import FINE
from starter.terminal import describe_distance, echo_err, plural, print_json, print_table

if TYPE_CHECKING:
    from starter.steering.status.listing import ListedMessage

EPILOG = """\
IN says "soon" where the index does not know when: such a message is due by now, or within a minute or so, because
moves by less than the setting index_after are not indexed. With --json its due_at is null and is_due_soon true.
'dormice show' asks the message itself."""


def add(commands: Commands) -> None:
    parser = commands.add("list", _run, "list messages, newest start first; the index may lag by a moment", EPILOG)
    add_filter(parser)
    parser.add_argument("--limit", **COUNT, default=50, help="most messages to list (50)")


async def _run(args: argparse.Namespace, settings: Settings) -> int:
    control = await open_control(settings)
    selection = read_filter(args)
    found: list[ListedMessage] = []
    shown = 0
    async for listed in control.list(selection, args.limit):
        shown += 1
        if args.json:
            print_json(to_document(listed))
        else:
            found.append(listed)
    if found:
        print_table(("MESSAGE", "LANE", "STATE", "DUE", "IN"), map(_to_cells, found), cuts_names=True)
    if shown == 0:
        echo_err("no message matches")
    if shown == args.limit and (total := await control.count(selection)) > shown:
        echo_err(f"{shown:,} of {plural(total, 'message')}; --limit N lists more")
    return FINE


def to_document(listed: "ListedMessage") -> dict[str, Any]:
    """Give a listed message as the object that `--json` prints."""
    names = ("kind", "id", "lane", "state", "due_at", "is_due_soon", "earliest_at", "started_at")
    if listed.state == "parked":
        names += ("parked_reason", "parked_at")
    return {name: getattr(listed, name) for name in names}


def _to_cells(listed: "ListedMessage") -> tuple[str, ...]:
    due, distance = "-", "-"
    if listed.is_due_soon:
        distance = "soon"
    elif listed.state == "active" and listed.due_at is not None:
        due, distance = format_moment(listed.due_at.timestamp()), describe_distance(listed.due_at)
    return workflow_id(listed.kind, listed.id), listed.lane, listed.state, due, distance
