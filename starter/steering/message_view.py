"""What is known of one message: by the server, and by the message itself or its pack."""

import asyncio
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError

from shared.errors import MessageNotFound
from shared.messages.placement import Layout, pack_index, pack_workflow_id, workflow_id
from shared.temporal.connect import CALL_TIMEOUT, is_missing, translate_rpc_error
from starter.starting.layouts import Layouts
from starter.starting.start_request import USUAL_PRIORITY
from starter.steering.packs import Packs
from starter.steering.status.failing_workflows import to_standstill
from starter.steering.status.listing import ListedMessage, from_status, to_listed
from starter.steering.status.queries import QUERY_TIMEOUT, query_or_none


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


class MessageReader:
    """Reads what is known of single messages."""

    def __init__(self, client: Client, layouts: Layouts, packs: Packs) -> None:
        self._client = client
        self._layouts = layouts
        self._packs = packs

    async def look_up(self, kind: str, message_id: str) -> ListedMessage:
        """Look up one message, see `Control.look_up`."""
        layout = await self._layouts.find(kind)
        if layout is not None:
            return (await self._show_packed(layout, message_id)).listed
        return await to_listed(await self._describe(kind, message_id))

    async def show(self, kind: str, message_id: str) -> MessageView:
        """Show one message, see `Control.show`."""
        layout = await self._layouts.find(kind)
        if layout is not None:
            return await self._show_packed(layout, message_id)
        described = await self._describe(kind, message_id)
        handle = self._client.get_workflow_handle(workflow_id(kind, message_id), run_id=described.run_id)
        status, explained = await asyncio.gather(
            query_or_none(handle.query, "status"), query_or_none(handle.query, "explain")
        )
        listed = await to_listed(described)
        note = "" if status else await self._explain_silence(described, listed.lane)
        return MessageView(
            listed=listed,
            status=status,
            ended=await _result_of(handle) if described.status is WorkflowExecutionStatus.COMPLETED else None,
            decisions=[] if explained is None else explained["decisions"],
            priority=described.raw_description.workflow_execution_info.priority.priority_key or USUAL_PRIORITY,
            history_length=described.history_length,
            lives_in=described.id,
            note=note,
        )

    async def _explain_silence(self, described: WorkflowExecutionDescription, lane: str) -> str:
        if (found := await to_standstill(self._client, described)) is not None:
            return f"{found.describe()}; 'dormice repair --help' says what to do"
        return f"no worker of lane {lane} could tell more within {QUERY_TIMEOUT.seconds} s"

    async def _show_packed(self, layout: Layout, message_id: str) -> MessageView:
        index = pack_index(message_id, layout.packs)
        status = await self._packs.status(layout, index, message_id)
        if status is None:
            raise MessageNotFound(_describe_unknown(layout.kind, message_id))
        described = await self._client.get_workflow_handle(pack_workflow_id(layout.kind, index)).describe()
        is_over = status["state"] in ("done", "stopped")
        return MessageView(
            listed=from_status(status),
            status=status,
            is_payload_kept=not is_over or status["payload"] is not None,
            ended={name: status[name] for name in ("state", "version", "result")} if is_over else None,
            decisions=status["decisions"],
            priority=status["priority"],
            history_length=described.history_length,
            lives_in=pack_workflow_id(layout.kind, index),
        )

    async def _describe(self, kind: str, message_id: str) -> WorkflowExecutionDescription:
        name = workflow_id(kind, message_id)
        try:
            return await self._client.get_workflow_handle(name).describe(rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if is_missing(exc):
                raise MessageNotFound(_describe_unknown(kind, message_id)) from exc
            raise translate_rpc_error(exc) from exc


async def _result_of(handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    try:
        return await handle.result(rpc_timeout=CALL_TIMEOUT)
    except RPCError as exc:
        raise translate_rpc_error(exc) from exc


def _describe_unknown(kind: str, message_id: str) -> str:
    return f"no message {workflow_id(kind, message_id)} is known; 'dormice list' shows those that are alive"
