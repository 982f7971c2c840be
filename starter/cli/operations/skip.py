"""The command `skip`."""

from click import argument

from shared.errors import Misconfigured
from shared.exit import FINE
from shared.settings import Settings
from starter.cli.arguments import DURATION, Arguments, read_name
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import echo_err

EPILOG = """\
For trials, on the server of 'dormice dev --time-skipping'. What is due in this time runs in it, in order. The clock is
that of the message's workflow: the others of its pack come along, and no other message does. It stays ahead. Handlers
see the moments at which their message was due, and the time of their machine. Temporal calls this experimental."""


@program.command("skip", epilog=EPILOG, prints_data=False)
@argument("name", metavar="KIND:ID", help="the message")
@argument("duration", **DURATION, help="how far, for example 30d")
async def run(args: Arguments, settings: Settings) -> int:
    """Move the clock of one message forward, for trials."""
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
