"""What is known of one message: by the server, and by the message itself or its pack."""

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from shared.errors import MessageNotFound
from shared.messages.message import ENDS
from shared.messages.placement import MESSAGE_WORKFLOW, Layout, pack_index, pack_workflow_id, workflow_id
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_errors
from shared.temporal.workflow_calls import find_workflow
from starter.starting.queries import QUERY_TIMEOUT, query_or_none
from starter.starting.start_request import DEFAULT_PRIORITY
from starter.steering.keepers import GateControl, describe_implicit
from starter.steering.packs.packs import Packs
from starter.steering.status.failing_workflows import to_standstill
from starter.steering.status.listing import ENDED_OTHERWISE, ListedMessage, from_status, state_of, to_listed

HAS_ENDED = frozenset({*ENDS, *ENDED_OTHERWISE.values()})
RESTS = HAS_ENDED | {"parked"}
"""States in which nothing more happens to a message unless somebody acts."""
NO_WAIT = timedelta(0)
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
PAUSE_GROWTH = 1.4
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
    gate: str = ""
    """Which gate of its kind, lane or tenant is closed; empty while all are open, and where nothing will run."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class MessageOwner:
    """Whose a message is, and whether it has ended, so that its kind and id are free."""

    tenant: str
    has_ended: bool


def to_document(view: MessageView, web_ui: str = "") -> dict[str, Any]:
    """Give a message as an object for JSON; `web_ui` is where the page of its workflow is."""
    listed = view.listed
    known = {"state": listed.state, "lane": listed.lane, "priority": view.priority, **(view.status or view.ended or {})}
    why = (view.status or {}).get("why") or (f"parked: {listed.parked_reason}" if listed.parked_reason else None)

    if listed.state in ENDED_OTHERWISE.values():
        known["state"] = listed.state
        why = f"its workflow was ended as {listed.state}, by something else than the message itself"

    if view.gate and why:
        why = f"{why}; {view.gate}"

    is_due = view.ended is None and listed.state not in {*ENDED_OTHERWISE.values(), "parked"}
    due_at = listed.due_at
    earliest_at = listed.earliest_at

    if view.status is not None:
        due_at = datetime.fromtimestamp(view.status["due_at_epoch"], UTC)
        earliest_at = _read_moment(view.status["earliest_at"])

    return {
        "kind": listed.kind,
        "id": listed.id,
        "workflow_id": workflow_id(listed.kind, listed.id),
        "state": known["state"],
        "lane": known["lane"],
        "due_at": due_at if is_due else None,
        "earliest_at": earliest_at if is_due else None,
        "expires_at": _read_moment(expires_at) if (expires_at := (view.status or {}).get("expires_at")) else None,
        "is_due_soon": view.status is None and listed.is_due_soon,
        "why": why,
        **{name: known.get(name) for name in ("version", "attempt", "priority", "tenant", "payload")},
        "is_payload_kept": view.is_payload_kept,
        **{name: known.get(name) for name in ("revision", "sources", "correlation_id", "result")},
        "decisions": [{**d, "at": _read_moment(d["at"]), "due_at": _read_moment(d["due_at"])} for d in view.decisions],
        "started_at": listed.started_at,
        "history_events": view.history_length,
        "web_ui": web_ui,
        "note": view.note or None,
    }


def _read_moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace(" UTC", "Z"))


class MessageViews:
    """Tells what is known of one message, alive or finished, asking the server, the message itself or its pack."""

    def __init__(self, client: Client, settings: Settings, packs: Packs) -> None:
        self._client = client
        self._packs = packs
        self._gates = GateControl(client, settings)

    async def look_up(self, kind: str, message_id: str) -> ListedMessage:
        """Look up one message, alive or finished, at the server or its pack, never in the index: always up to date."""
        if (layout := await self._packs.layouts.find(kind)) is not None:
            return (await self._show_packed(layout, message_id)).listed
        return await to_listed(await self._describe(kind, message_id))

    async def find_owner(self, kind: str, message_id: str) -> MessageOwner:
        """Find whose a message is; without a worker only one with a workflow of its own tells, else PackNotServed."""
        if (layout := await self._packs.layouts.find(kind)) is not None:
            status = await self._read_packed(layout, message_id)
            return MessageOwner(status["tenant"], has_ended=status["state"] in ENDS)

        described = await self._describe(kind, message_id)
        # a start writes the tenant as the key of fairness, which the server tells also while no worker runs
        priority = described.raw_description.workflow_execution_info.priority
        return MessageOwner(priority.fairness_key, has_ended=state_of(described) in HAS_ENDED)

    async def show(self, kind: str, message_id: str, *, wait: timedelta = NO_WAIT) -> MessageView:
        """Show one message, alive or finished; without a worker, only what the server knows, or PackNotServed.

        With `wait` it is shown once it has ended or is parked, or else, as it then is, when that time is over.
        """
        if wait > NO_WAIT:
            await self._wait_until_it_rests(kind, message_id, wait)

        now = time.time()
        gates = asyncio.create_task(self._gates.fetch_implicit(now))

        try:
            view = await self._show(kind, message_id)
            if view.listed.state in RESTS:
                return view
            tenant = (view.status or {}).get("tenant", "")
            return replace(view, gate=describe_implicit(await gates, kind, view.listed.lane, tenant, now))
        finally:
            gates.cancel()

    async def _wait_until_it_rests(self, kind: str, message_id: str, wait: timedelta) -> None:
        """Wait until a message has ended or is parked, but no longer than `wait`; asked ever less often meanwhile."""
        pause = FIRST_PAUSE_SECONDS
        deadline = time.monotonic() + wait.total_seconds()
        while (await self.look_up(kind, message_id)).state not in RESTS:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(pause, left))
            pause = min(pause * PAUSE_GROWTH, LONGEST_PAUSE_SECONDS)

    async def _show(self, kind: str, message_id: str) -> MessageView:
        if (layout := await self._packs.layouts.find(kind)) is not None:
            return await self._show_packed(layout, message_id)
        return await self._show_solo(kind, message_id)

    async def _show_solo(self, kind: str, message_id: str) -> MessageView:
        handle = self._client.get_workflow_handle(workflow_id(kind, message_id))
        described, status = await asyncio.gather(self._describe(kind, message_id), query_or_none(handle, "status"))
        explained = status
        if status is not None and "decisions" not in status:  # a worker of an older version
            explained = await query_or_none(handle, "explain")

        listed = await to_listed(described)
        ended = None
        note = ""

        if described.status is WorkflowExecutionStatus.COMPLETED:
            with translate_rpc_errors():
                run = self._client.get_workflow_handle(described.id, run_id=described.run_id)
                ended = await run.result(rpc_timeout=CALL_TIMEOUT)

        if status is None:
            failing = await to_standstill(self._client, described)
            unserved = f"no worker of lane {listed.lane} could tell more within {QUERY_TIMEOUT.seconds} s"
            note = unserved if failing is None else failing.describe()

        decisions: list[Any] = [] if explained is None else explained["decisions"]
        return MessageView(
            listed=listed,
            status=status,
            ended=ended,
            decisions=decisions,
            priority=described.raw_description.workflow_execution_info.priority.priority_key or DEFAULT_PRIORITY,
            history_length=described.history_length,
            lives_in=described.id,
            note=note,
        )

    async def _show_packed(self, layout: Layout, message_id: str) -> MessageView:
        status = await self._read_packed(layout, message_id)
        home = pack_workflow_id(layout.kind, pack_index(message_id, layout.packs))
        described = await self._client.get_workflow_handle(home).describe()
        is_over = status["state"] in ENDS

        ended = {name: status[name] for name in ("state", "version", "result")} if is_over else None
        return MessageView(
            listed=from_status(status),
            status=status,
            is_payload_kept=not is_over or status["payload"] is not None,
            ended=ended,
            decisions=status["decisions"],
            priority=status["priority"],
            history_length=described.history_length,
            lives_in=described.id,
        )

    async def _read_packed(self, layout: Layout, message_id: str) -> dict[str, Any]:
        status = await self._packs.status(layout, pack_index(message_id, layout.packs), message_id)
        if status is None:
            raise unknown_message(layout.kind, message_id)
        return status

    async def _describe(self, kind: str, message_id: str) -> WorkflowExecutionDescription:
        with translate_rpc_errors():
            described = await find_workflow(self._client, workflow_id(kind, message_id))
        # a workflow of another application may have any name, and answers as it likes
        if described is None or described.workflow_type != MESSAGE_WORKFLOW:
            raise unknown_message(kind, message_id)
        return described


def unknown_message(kind: str, message_id: str) -> MessageNotFound:
    """Make the error of a message that nobody knows, or that is none of the caller's business."""
    return MessageNotFound(UNKNOWN.format(workflow_id(kind, message_id)))
