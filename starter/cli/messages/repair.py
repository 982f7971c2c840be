"""The command `repair`."""

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from click import argument, option

from shared.errors import MessageNotFound
from shared.exit import FINE, PARTLY
from shared.messages.placement import pack_index, pack_workflow_id, workflow_id
from shared.settings import Settings
from starter.cli.arguments import Arguments, read_name
from starter.cli.connection import open_client
from starter.cli.program import program
from starter.local.terminal import echo_err, plural, print_json

if TYPE_CHECKING:
    from temporalio.client import Client

    from starter.starting.layouts import Layouts
    from starter.steering.status.failing_workflows import FailingWorkflow
    from starter.steering.status.repairs import RepairResult

EPILOG = """\
A workflow whose task fails over and over stands still, and with it the message, or all messages of the pack, that live
in it; nothing is lost meanwhile. First put back the release that could run it, if it came with a release: then it goes
on by itself. What still fails is begun again here from its last good task. Signals that came since are kept, in order;
if its task then fails again, each of them is left out in turn, to find the one that does the harm, and only that one is
lost. The handler calls that followed that task are made once more, with the same version and idempotency key."""


@program.command("repair", epilog=EPILOG)
@argument(
    "names",
    metavar="[KIND:ID]...",
    nargs=-1,
    help="the messages, or workflows such as PREFIX~gates; all of which the server reports it, when left out",
)
@option("--dry-run", is_flag=True, help="only tell what stands still, and why")
@option("--without-signals", is_flag=True, help="leave out all signals that came since; each is told")
async def run(args: Arguments, settings: Settings) -> int:
    """Bring back messages that stand still because their workflow's task fails."""
    from temporalio.service import RPCError

    from shared.temporal.connect import translate_rpc_error
    from starter.steering.status.failing_workflows import list_standstills
    from starter.steering.status.repairs import RepairResult, SignalsLeft, list_signals_since, repair

    # the id of a pack or of another workflow has a tilde; a message's name begins with a kind and a colon
    names = [name if "~" in name and ":" not in name else read_name(name) for name in args.names]
    client = await open_client(settings)
    code = FINE
    is_found = False
    reported = list_standstills(client, settings.task_queue_prefix)
    async for failing in _find_named(client, settings, names) if names else reported:
        is_found = True
        try:
            if args.dry_run:
                repaired = RepairResult("", await list_signals_since(client, failing), [])
            else:
                repaired = await repair(client, failing, without_signals=args.without_signals)
        except RPCError as exc:
            code = PARTLY
            echo_err(f"dormice: {failing.workflow_id} could not be begun again: {translate_rpc_error(exc)}")
        except SignalsLeft as exc:
            code = PARTLY
            echo_err(f"dormice: {failing.workflow_id} was begun again, but {exc}")
        else:
            _report(args, failing, repaired)
            if repaired.is_failing or (repaired.left_out and not args.without_signals):
                code = PARTLY
    if not is_found:
        echo_err("repair: nothing stands still because its workflow's task fails")
    return code


def _report(args: Arguments, failing: "FailingWorkflow", repaired: "RepairResult") -> None:
    kept = repaired.kept
    left_out = repaired.left_out
    if args.json:
        found = {"signals": kept, "left_out": left_out, "new_run_id": repaired.run_id or None}
        print_json({**asdict(failing), **found, "is_failing": repaired.is_failing})
        return

    echo_err(f"{failing.workflow_id}: its task fails (attempt {failing.attempts}): {failing.reason}")
    if kept:
        echo_err(f"  {plural(len(kept), 'signal')} since its last good task, kept: {', '.join(kept)}")
    if left_out:
        why = "" if args.without_signals else ", because its task fails with it"
        echo_err(f"  {plural(len(left_out), 'signal')} since its last good task, left out{why}: {', '.join(left_out)}")
    if repaired.is_failing:
        echo_err("  begun again from there, and fails again: put back the release that could run it")
    elif repaired.run_id:
        echo_err("  begun again from there; 'dormice show' tells how it goes on")


async def _find_named(
    client: "Client", settings: Settings, names: list[tuple[str, str] | str]
) -> "AsyncIterator[FailingWorkflow]":
    from shared.temporal.connect import translate_rpc_errors
    from shared.temporal.workflow_calls import find_workflow
    from starter.starting.layouts import Layouts
    from starter.steering.status.failing_workflows import to_standstill

    layouts = Layouts(client, settings)
    ids = {name if isinstance(name, str) else await _place(layouts, *name): name for name in names}
    for workflow, name in ids.items():
        with translate_rpc_errors():
            if (described := await find_workflow(client, workflow)) is None:
                shown = name if isinstance(name, str) else workflow_id(*name)
                raise MessageNotFound(f"no message {shown} is known")
            found = await to_standstill(client, described)
        if found is not None:
            yield found


async def _place(layouts: "Layouts", kind: str, message_id: str) -> str:
    if (layout := await layouts.find(kind)) is None:
        return workflow_id(kind, message_id)
    return pack_workflow_id(kind, pack_index(message_id, layout.packs))
