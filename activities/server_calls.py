"""What workflows need of a worker beside their handlers: calls to the server, old runs deleted, signals opened."""

import asyncio
import contextlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import QueryRejectCondition, TypedSearchAttributes
from temporalio.converter import PayloadCodec
from temporalio.service import RPCError

from shared.messages.placement import PACK_WORKFLOW, SPREAD, pack_workflow_id, split_from
from shared.temporal.connect import to_raw
from shared.temporal.converter import UNOPENED
from shared.temporal.search_attributes import pack_attributes_at_start
from shared.temporal.workflow_calls import set_priority

SET_PRIORITY = "set_priority"
FORWARD = "forward_signals"
GROW_PACKS = "grow_packs"
OPEN_SIGNALS = "open_signals"

DELETE_AFTER = timedelta(minutes=3)
"""Six times a server's default interval for saving that it has seen a closing (`history.*UpdateAckInterval`). An
earlier delete is retried again and again, and meanwhile blocks the transfer queue behind it."""

DELETE_EVERY = timedelta(seconds=0.02)  # a process deletes faster than its packs leave runs, at a small load
KEPT_MAX = 20_000
CALL_TIMEOUT = timedelta(seconds=5)

FORWARD_AT_ONCE = 8  # packs that are sent signals at once
SPLIT_AT_ONCE = 8  # packs that are split at once, so that a kind that grows leaves room for what is due
LOOK_SECONDS = 0.3


@activity.defn(name=SET_PRIORITY)
async def set_own_priority(priority: int) -> None:
    """Set the server-side priority of the workflow that calls this; idempotent."""
    await set_priority(activity.client(), activity.info().workflow_id or "", priority)


@activity.defn(name=FORWARD)
async def forward_signals(call: Any) -> None:
    """Send signals on to other packs, and start those; tokens in them make a repetition change nothing.

    Each pack gets its own in order.
    """
    by_pack: dict[int, list[tuple[str, Any]]] = {}
    for index, signal, wire in call["strays"]:
        by_pack.setdefault(index, []).append((signal, wire))

    room = asyncio.Semaphore(FORWARD_AT_ONCE)

    async def forward(index: int) -> None:
        async with room:
            for signal, wire in by_pack[index]:
                await _signal_pack(call["pack"], index, signal, wire)
                activity.heartbeat()

    async with asyncio.TaskGroup() as forwarding:
        for index in by_pack:
            forwarding.create_task(forward(index))


async def _signal_pack(pack: Mapping[str, Any], index: int, signal: str, wire: Any) -> None:
    """Signal a pack, and start it if there is none; `pack` is the heading of a pack of the kind."""
    heading = {name: value for name, value in pack.items() if name != "task_timeout"}
    await activity.client().start_workflow(
        PACK_WORKFLOW,
        {**heading, "index": index},
        id=pack_workflow_id(pack["kind"], index),
        task_queue=activity.info().task_queue,
        task_timeout=timedelta(seconds=pack["task_timeout"]),
        search_attributes=TypedSearchAttributes(pack_attributes_at_start(pack["kind"], pack["lane"])),
        start_signal=signal,
        start_signal_args=[to_raw(wire)],
    )


@activity.defn(name=GROW_PACKS)
async def grow_packs(call: Any) -> None:
    """Give a kind more packs: those that are split send about half of their messages on; returns once all have.

    A pack that is split is started if it does not exist: a sender that knows the old number may be about to start it.
    A repetition asks each again, which changes nothing in one that has done it.
    """
    pack: dict[str, Any] = call["pack"]
    room = asyncio.Semaphore(SPLIT_AT_ONCE)

    async def split(index: int) -> None:
        async with room:
            await _signal_pack(pack, index, SPREAD, {"packs": call["to"]})
            while not await _is_split(pack["kind"], index, call["to"]):
                activity.heartbeat()
                await asyncio.sleep(LOOK_SECONDS)

    async with asyncio.TaskGroup() as splitting:
        for index in range(pack["packs"], call["to"]):
            splitting.create_task(split(split_from(index)))


async def _is_split(kind: str, index: int, packs: int) -> bool:
    """Return whether a pack knows its kind's new number, and holds nothing any more that belongs to another pack."""
    handle = activity.client().get_workflow_handle(pack_workflow_id(kind, index))
    try:
        # the SDK repeats a query that timed out, so only an outer timeout limits it
        async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
            seen = await handle.query("overview", reject_condition=QueryRejectCondition.NOT_OPEN)
    except WorkflowQueryRejectedError as exc:
        # ended from outside, so its messages are no longer alive; or its next run is about to begin
        return exc.status != WorkflowExecutionStatus.CONTINUED_AS_NEW
    except (RPCError, TimeoutError, WorkflowQueryFailedError):
        return False

    return has_split(seen, packs)


def has_split(overview: Mapping[str, Any], packs: int) -> bool:
    """Return whether a pack knows of so many packs, and has sent on all that belongs to others, by its `overview`."""
    # nothing is left to forward; a message stays while its handler runs
    return overview["packs"] >= packs and overview["strays"] == overview["staying"] == 0


@activity.defn(name=OPEN_SIGNALS)
async def open_signals(sealed: list[list[str]]) -> list[list[str] | None]:
    """Decrypt the payloads of signals, each in base64; gives None for a signal whose key this worker lacks."""
    codec = activity.client().data_converter.payload_codec
    return [await _open(codec, payloads) for payloads in sealed]


async def _open(codec: PayloadCodec | None, sealed: list[str]) -> list[str] | None:
    payloads = [Payload.FromString(b64decode(text)) for text in sealed]
    opened = payloads if codec is None else await codec.decode(payloads)
    if any(UNOPENED in payload.metadata for payload in opened):
        return None
    return [b64encode(payload.SerializeToString()).decode() for payload in opened]


class ContinuedRuns:
    """Runs that packs have continued from; if the process ends, the namespace's retention deletes them."""

    def __init__(self) -> None:
        self._delete_after = DELETE_AFTER.total_seconds()
        self._runs: dict[str, tuple[str, float]] = {}

    def add(self, workflow_id: str, run_id: str) -> None:
        """Note a run for deletion; does nothing if it is known already or `KEPT_MAX` runs are noted."""
        if run_id not in self._runs and len(self._runs) < KEPT_MAX:
            self._runs[run_id] = (workflow_id, asyncio.get_running_loop().time() + self._delete_after)

    async def delete_when_due(self, client: Client) -> None:
        """Delete each noted run once its time has come, one by one, for ever."""
        pause = DELETE_EVERY.total_seconds()
        while True:
            run_id, (workflow_id, due) = next(iter(self._runs.items()), ("", ("", 0.0)))
            wait = due - asyncio.get_running_loop().time() if run_id else self._delete_after
            await asyncio.sleep(min(max(wait, pause), 1.0))
            if run_id and wait <= 0:
                execution = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
                request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
                with contextlib.suppress(RPCError):  # the server's own retention deletes it too, later
                    await client.workflow_service.delete_workflow_execution(request, timeout=CALL_TIMEOUT)
                del self._runs[run_id]
