"""The command `skip`."""

import argparse

from shared.errors import Misconfigured
from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import DURATION, Commands, read_name
from starter.cli.connection import open_client
from starter.local.terminal import echo_err

EPILOG = """\
For trials, on the server of 'dormice dev --time-skipping'. What is due in this time runs in it, in order. The clock is
that of the message's workflow: the others of its pack come along, and no other message does. It stays ahead. Handlers
see the moments at which their message was due, and the time of their machine. Temporal calls this experimental."""


def add(commands: Commands) -> None:
    parser = commands.add("skip", _run, "move the clock of one message forward, for trials", EPILOG, prints_data=False)
    parser.add_argument("name", metavar="KIND:ID", help="the message")
    parser.add_argument("duration", **DURATION, help="how far, for example 30d")


async def _run(args: argparse.Namespace, settings: Settings) -> int:
    from temporalio.service import RPCError, RPCStatusCode
    from temporalio.testing import TimeSkipper

    from shared.temporal.connect import translate_rpc_error
    from starter.control import Control

    kind, message_id = read_name(args.name)
    client = await open_client(settings)
    view = await Control(client, settings).show(kind, message_id)
    try:
        is_alive = await TimeSkipper(client).fast_forward(client.get_workflow_handle(view.lives_in), args.duration)
    except RPCError as exc:
        if exc.status in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.UNIMPLEMENTED):
            remedy = "run it by 'dormice dev --time-skipping'"
            raise Misconfigured(f"the server does not move the clock of a workflow ({exc.message}); {remedy}") from exc
        raise translate_rpc_error(exc) from exc
    said = f"{args.name}: its clock is ahead now" if is_alive else f"{args.name}: ended before that time was over"
    echo_err(said)
    return FINE
