"""Pack client: signals for some messages of a pack, and queries that only the pack can answer."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError

from shared.errors import PackNotServed, StandsStill
from shared.lanes import prefix_of
from shared.messages.placement import Layout, pack_workflow_id
from shared.messages.signals import SIGNAL_NAMES, Signal, write_steering
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, describe_queue, is_missing, translate_rpc_error
from starter.starting.layouts import Layouts
from starter.starting.pack_starter import is_polled
from starter.steering.selection import Selection
from starter.steering.status.failing_workflows import to_standstill
from starter.steering.status.listing import ListedMessage

QUERY_TIMEOUT = timedelta(seconds=5)
PATIENCE_SECONDS = 20.0
"""How long a pack with workers may make no progress before PackNotServed is raised."""
TURN_SECONDS = 300.0
"""The same while a worker has the pack's task, or works on the tasks queued before it."""

PAGE_SIZE = 1000
ASKED_AT_ONCE = 16


class Packs:
    """Queries and signals packs.

    All methods raise PackNotServed, within seconds, when no worker serves the pack, and StandsStill when the pack's
    own task fails.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings

    async def steer(self, layout: Layout, index: int, ids: list[str], signal: Signal) -> list[str]:
        """Send one signal for some messages of a pack; returns the ids that are not alive in it.

        The server keeps the signal also when PackNotServed is raised; it then takes effect later.
        """
        name = pack_workflow_id(layout.kind, index)
        token = uuid.uuid4().hex
        handle = self._client.get_workflow_handle(name)
        try:
            wire = write_steering(ids, signal, token)
            await handle.signal(SIGNAL_NAMES[type(signal)], wire, rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if is_missing(exc):
                return list(ids)
            raise translate_rpc_error(exc) from exc
        return await self._find_missing(layout, index, token, ids)

    async def _find_missing(self, layout: Layout, index: int, token: str, ids: list[str]) -> list[str]:
        receipt = await self._ask(layout, index, "receipt", token)
        missing: list[str] = [ids[position] for position in receipt["missing"]]
        for other, positions in receipt["moved"].items():
            missing += await self._find_missing(layout, int(other), token, [ids[position] for position in positions])
        return missing

    async def status(self, layout: Layout, index: int, message_id: str) -> dict[str, Any] | None:
        """Query the status and the last decisions of a message; None when the pack does not know it."""
        answer = await self._ask(layout, index, "known", message_id)
        if (other := answer["moved_to"]) is None:
            return answer["status"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (found := await self.status(layout, other, message_id)) is None:
                if (await self._ask(layout, index, "overview"))["strays"] == 0:
                    return await self.status(layout, other, message_id)
                await asyncio.sleep(backoff_seconds(1))
        return found

    async def overview(self, layout: Layout, index: int) -> dict[str, Any]:
        """Query how many messages a pack holds, what it waits for, and how many packs it believes its kind has."""
        return await self._ask(layout, index, "overview")

    async def iterate(self, layouts: Layouts, selection: Selection) -> AsyncIterator[ListedMessage]:
        """List the packed messages of a selection, pack by pack."""
        async for layout, index in self._packs_of(layouts, selection):
            async for message in self._read_pages(layout, index, _to_request(selection)):
                yield _to_listed(layout.kind, message)

    async def list_ids(self, layout: Layout, index: int, state: str) -> set[str]:
        """Give the ids of the messages of a pack that are in a state."""
        return {message["id"] async for message in self._read_pages(layout, index, {"state": state})}

    async def _read_pages(self, layout: Layout, index: int, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        after = ""
        while True:
            page = await self._ask(layout, index, "page", request | {"after": after, "limit": PAGE_SIZE})
            for message in page["messages"]:
                yield message
            if len(page["messages"]) < PAGE_SIZE:
                return
            after = page["messages"][-1]["id"]

    async def count(self, layouts: Layouts, selection: Selection) -> int:
        """Count the packed messages of a selection, by a query to every pack that may hold some."""
        room = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(layout: Layout, index: int) -> int:
            async with room:
                return (await self._ask(layout, index, "page", _to_request(selection) | {"limit": 0}))["count"]

        packs = await self.list_packs(layouts, selection)
        return sum(await asyncio.gather(*(ask(*pack) for pack in packs)))

    async def list_packs(self, layouts: Layouts, selection: Selection) -> list[tuple[Layout, int]]:
        """Give the packs that may hold messages of a selection."""
        return [pack async for pack in self._packs_of(layouts, selection)]

    async def count_due(self, layout: Layout, index: int, edges: Sequence[float]) -> dict[str, list[int]]:
        """Query how many messages of a pack are due before each of some times (seconds since the epoch), by lane."""
        return (await self._ask(layout, index, "due", list(edges)))["lanes"]

    async def _packs_of(self, layouts: Layouts, selection: Selection) -> AsyncIterator[tuple[Layout, int]]:
        """Give the packs that may hold such messages; for one kind also packs that are not in the index yet."""
        known = 0
        if selection.kind and not selection.narrows_packs and (layout := await layouts.find(selection.kind)):
            known = layout.packs
            for index in range(known):
                yield layout, index
        try:
            async for execution in self._client.list_workflows(selection.to_pack_query(), page_size=500):
                kind, _, index = execution.id.rpartition("~")
                layout = await layouts.find(kind)
                if layout is not None and int(index) >= known:
                    yield layout, int(index)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc

    async def _ask(self, layout: Layout, index: int, query: str, argument: Any = None) -> dict[str, Any]:
        """Query until the pack answers, for as long as it makes progress.

        A pack that was sent a signal may have to finish a batch before it processes the signal.
        """
        name = pack_workflow_id(layout.kind, index)
        handle = self._client.get_workflow_handle(name)
        moved, seen, attempts = time.monotonic(), None, 0
        while True:
            try:
                # the SDK repeats a query that timed out, so only an outer timeout limits it
                async with asyncio.timeout(QUERY_TIMEOUT.total_seconds()):
                    answer = await handle.query(
                        query, *([] if argument is None else [argument]), reject_condition=QueryRejectCondition.NOT_OPEN
                    )
                if answer is not None:
                    return answer
            except RPCError as exc:
                if is_missing(exc):
                    return _NOTHING
            except WorkflowQueryRejectedError as exc:
                if exc.status != WorkflowExecutionStatus.CONTINUED_AS_NEW:  # then its next run is about to begin
                    return _NOTHING  # ended from outside: its messages are no longer alive
            except (TimeoutError, WorkflowQueryFailedError):
                pass
            before, seen = seen, await self._look(layout, handle)
            if seen is not None and (before is None or seen.mark != before.mark):
                moved = time.monotonic()
            patience = TURN_SECONDS if seen is not None and seen.is_in_turn else PATIENCE_SECONDS
            if time.monotonic() - moved >= patience:
                raise PackNotServed(
                    f"pack {name} on lane {layout.lane} does not answer; its workers are busy, or stuck"
                )
            attempts += 1
            await asyncio.sleep(backoff_seconds(attempts))

    async def _look(self, layout: Layout, handle: WorkflowHandle[Any, Any]) -> "_Progress | None":
        """Read a pack's progress, None while the server does not answer.

        Raises PackNotServed or StandsStill when the pack can't answer.
        """
        try:
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
            queue = await describe_queue(self._client, described.task_queue, report_stats=True)
            failing = await to_standstill(self._client, described)
        except RPCError:
            return None  # the caller's patience decides
        if not is_polled(queue):
            prefix = prefix_of(described.task_queue)
            raise PackNotServed(
                f"no worker of lane {layout.lane} serves pack {described.id}, and only the pack knows its messages; "
                f"start one (with worker versioning, of the current version): dormice worker --lane {layout.lane}"
                + ("" if prefix == self._settings.task_queue_prefix else f" --set task_queue_prefix={prefix}")
            )
        if failing is not None:
            raise StandsStill(f"{failing.describe()}; 'dormice repair --help' says what to do")
        task = described.raw_description.pending_workflow_task
        is_begun = task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
        is_in_turn = task.attempt <= 1 and (is_begun or queue.stats.tasks_dispatch_rate > 0)
        return _Progress((described.run_id, described.history_length, task.attempt), is_in_turn)


class _Progress(NamedTuple):
    """Progress of a pack."""

    mark: tuple[str, int, int]
    """Run id, history length and attempt of its task: one of them changes when the pack makes progress."""
    is_in_turn: bool
    """A worker has the pack's task, or works on those queued before it, and this is the task's first attempt."""


_NOTHING: dict[str, Any] = {
    "status": None,
    "moved_to": None,
    "decisions": [],
    "messages": [],
    "count": 0,
    "missing": [],
    "moved": {},
    "packs": 0,
    "strays": 0,
    "staying": 0,
    "lanes": {},
}


def _to_request(selection: Selection) -> dict[str, Any]:
    wanted = {
        "state": selection.state,
        "lane": selection.lane,
        "due_before": selection.due_before and selection.due_before.timestamp(),
    }
    return {name: value for name, value in wanted.items() if value is not None}


def _to_listed(kind: str, message: dict[str, Any]) -> ListedMessage:
    return ListedMessage(
        kind=kind,
        id=message["id"],
        lane=message["lane"],
        state=message["state"],
        due_at=datetime.fromtimestamp(message["due_at"], UTC),
        earliest_at=datetime.fromtimestamp(message["earliest_at"], UTC),
        started_at=None,
        parked_reason=message["parked_reason"],
        parked_at=datetime.fromtimestamp(message["parked_at"], UTC) if message["parked_at"] else None,
    )
