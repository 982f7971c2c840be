"""What is known of one message: by the server, and by the message itself or its pack."""

import asyncio
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from shared.errors import MessageNotFound
from shared.messages.placement import Layout, pack_index, pack_workflow_id, workflow_id
from shared.temporal.connect import CALL_TIMEOUT, find_workflow, translate_rpc_errors
from starter.starting.queries import QUERY_TIMEOUT, query_or_none
from starter.starting.start_request import USUAL_PRIORITY
from starter.steering.packs import Packs
from starter.steering.status.failing_workflows import to_standstill
from starter.steering.status.listing import ListedMessage, from_status, to_listed

UNKNOWN = "no message {} is known; 'dormice list' shows those that are alive"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """One message in full: what the server knows, and what the message itself answered."""

    listed: ListedMessage
    status: dict[str, Any] | None
    """Answer of the `status` query, also after the message's end; None when no worker of the lane answered in time."""
    ended: dict[str, Any] | None
    """State, version and result at the message's end; None unless it is done or was stopped."""
    decisions: list[dict[str, Any]]
    priority: int
    history_length: int
    lives_in: str
    """Id of the workflow that the message lives in."""
    is_payload_kept: bool = True
    """False for a message that has finished in a pack."""
    note: str = ""


async def look_up(client: Client, packs: Packs, kind: str, message_id: str) -> ListedMessage:
    """Look up one message, see `Control.look_up`."""
    if (layout := await packs.layouts.find(kind)) is not None:
        return (await _show_packed(client, packs, layout, message_id)).listed
    return await to_listed(await _describe(client, kind, message_id))


async def show(client: Client, packs: Packs, kind: str, message_id: str) -> MessageView:
    """Show one message, see `Control.show`."""
    if (layout := await packs.layouts.find(kind)) is not None:
        return await _show_packed(client, packs, layout, message_id)
    described = await _describe(client, kind, message_id)
    handle = client.get_workflow_handle(described.id, run_id=described.run_id)
    status, explained = await asyncio.gather(query_or_none(handle, "status"), query_or_none(handle, "explain"))
    listed, ended, note = await to_listed(described), None, ""
    if described.status is WorkflowExecutionStatus.COMPLETED:
        with translate_rpc_errors():
            ended = await handle.result(rpc_timeout=CALL_TIMEOUT)
    if status is None:
        failing = await to_standstill(client, described)
        unserved = f"no worker of lane {listed.lane} could tell more within {QUERY_TIMEOUT.seconds} s"
        note = unserved if failing is None else failing.describe()
    return MessageView(
        listed=listed,
        status=status,
        ended=ended,
        decisions=[] if explained is None else explained["decisions"],
        priority=described.raw_description.workflow_execution_info.priority.priority_key or USUAL_PRIORITY,
        history_length=described.history_length,
        lives_in=described.id,
        note=note,
    )


async def _show_packed(client: Client, packs: Packs, layout: Layout, message_id: str) -> MessageView:
    index = pack_index(message_id, layout.packs)
    status = await packs.status(layout, index, message_id)
    if status is None:
        raise MessageNotFound(UNKNOWN.format(workflow_id(layout.kind, message_id)))
    described = await client.get_workflow_handle(pack_workflow_id(layout.kind, index)).describe()
    is_over = status["state"] in ("done", "stopped")
    return MessageView(
        listed=from_status(status),
        status=status,
        is_payload_kept=not is_over or status["payload"] is not None,
        ended={name: status[name] for name in ("state", "version", "result")} if is_over else None,
        decisions=status["decisions"],
        priority=status["priority"],
        history_length=described.history_length,
        lives_in=described.id,
    )


async def _describe(client: Client, kind: str, message_id: str) -> WorkflowExecutionDescription:
    name = workflow_id(kind, message_id)
    with translate_rpc_errors():
        described = await find_workflow(client, name)
    if described is None:
        raise MessageNotFound(UNKNOWN.format(name))
    return described
