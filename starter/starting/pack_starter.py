"""Admission: hands chunks of messages to their packs and learns what became of each message."""

import asyncio
import time
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.api.workflowservice.v1 import DescribeTaskQueueResponse
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from shared.messages.placement import Layout, pack_workflow_id, workflow_id
from shared.settings import Settings
from shared.temporal.backoff import backoff_seconds
from shared.temporal.connect import CALL_TIMEOUT, describe_queue
from shared.temporal.deployment import find_taking, to_version
from starter.starting.calls.retrying_caller import RetryingCaller
from starter.starting.chunks import Chunk, build_admit_request
from starter.starting.receipts import Receipt, StartOutcome, to_refusal
from workflows.packs.receipts import KNOWN, REVISED, STOPPED

QUERY_TIMEOUT = timedelta(seconds=5)

Tag = TypeVar("Tag")


class PackStarter:
    """Hands a chunk over in one call, which is durable; asks the pack afterwards unless the call has made the pack."""

    def __init__(
        self,
        client: Client,
        settings: Settings,
        caller: RetryingCaller,
        *,
        restarts_finished: bool = False,
        revises: bool = False,
    ) -> None:
        self._client = client
        self._settings = settings
        self._caller = caller
        self._flags = [name for name, is_set in (("restarts", restarts_finished), ("revises", revises)) if is_set]
        self._known = StartOutcome.IGNORED if revises else StartOutcome.ALREADY_RUNNING

    async def admit(self, chunk: Chunk[Tag], session: str) -> list[Receipt[Tag]]:
        """Start the messages of a chunk and give a receipt for each; a retry within a session changes nothing."""
        token = chunk.token(session)
        request = await build_admit_request(self._client, self._settings, chunk, token=token, flags=self._flags)
        service = self._client.workflow_service
        # retry=False: the SDK's own retries would hide that the server is at its limit
        called = await self._caller.call(
            lambda: service.signal_with_start_workflow_execution(request, retry=False, timeout=CALL_TIMEOUT)
        )
        names = [workflow_id(chunk.layout.kind, message_id) for message_id in chunk.ids]
        if called.answer is None:
            pairs = zip(chunk.tags, names, strict=True)
            return [to_refusal(called.error, tag, name, called.attempts) for tag, name in pairs]
        if called.answer.started:
            told: dict[str, Any] | str = {KNOWN: _find_repeated(names), "refused": {}}
        else:
            told = await self._find_out(chunk.layout, chunk.index, token)
        fates = self._to_fates(told, len(names))
        run_id, attempts = called.answer.run_id, called.attempts
        return [
            Receipt(tag, name, outcome, run_id, reason, attempts)
            for tag, name, (outcome, reason) in zip(chunk.tags, names, fates, strict=True)
        ]

    def _to_fates(self, told: dict[str, Any] | str, count: int) -> list[tuple[StartOutcome, str]]:
        """Give outcome and reason of each message of a chunk, in order."""
        if isinstance(told, str):
            return [(StartOutcome.FAILED, told)] * count
        fates = [(StartOutcome.STARTED, "")] * count
        for name, outcome in ((KNOWN, self._known), (STOPPED, StartOutcome.STOPPED), (REVISED, StartOutcome.REVISED)):
            for position in told.get(name, ()):
                fates[position] = (outcome, "")
        for position, reason in told["refused"].items():
            fates[int(position)] = (StartOutcome.REJECTED, reason)
        return fates

    async def _find_out(self, layout: Layout, index: int, token: str) -> dict[str, Any] | str:
        """Ask the pack, and those that it has sent messages on to because they have moved there."""
        told = await self._ask(layout, index, token)
        if isinstance(told, str):
            return told
        for other, positions in told.get("moved", {}).items():
            part = await self._find_out(layout, int(other), token)
            if isinstance(part, str):
                return part
            for fate in (KNOWN, REVISED, STOPPED):
                told[fate] = [*told.get(fate, []), *(positions[n] for n in part.get(fate, []))]
            told["refused"] |= {str(positions[int(n)]): reason for n, reason in part["refused"].items()}
        return told

    async def _ask(self, layout: Layout, index: int, token: str) -> dict[str, Any] | str:
        """Ask the pack what became of a chunk; gives a sentence instead when it does not answer."""
        name = pack_workflow_id(layout.kind, index)
        pack = self._client.get_workflow_handle(name)
        give_up_at = time.monotonic() + self._settings.patience.total_seconds()
        attempts = 0
        while True:
            try:
                # the SDK repeats a query that timed out: only a limit around it all is one
                async with asyncio.timeout(QUERY_TIMEOUT.total_seconds()):
                    receipt = await pack.query("receipt", token, result_type=dict[str, Any])
            except (RPCError, TimeoutError, WorkflowQueryFailedError):
                receipt = None
                if (queue := await find_idle_queue(self._client, name)) is not None:
                    return f"no worker serves its pack {name} (task queue {queue}), which has it and will take it in"
            if receipt is not None:
                return receipt
            if time.monotonic() >= give_up_at:
                return f"its pack {name} has it, but did not tell within {self._settings.patience} what became of it"
            attempts += 1
            await asyncio.sleep(backoff_seconds(attempts))


async def find_idle_queue(client: Client, pack_id: str) -> str | None:
    """Give the task queue that a pack lives on if no worker has asked for its tasks within the last minutes.

    It may be another one than ours: a pack stays where its kind began. None too while the server does not tell; then
    the caller's patience decides.
    """
    try:
        queue = (await client.get_workflow_handle(pack_id).describe(rpc_timeout=CALL_TIMEOUT)).task_queue
        return None if await is_served(client, queue) else queue
    except RPCError:
        return None


async def is_served(client: Client, queue: str) -> bool:
    """Tell whether any worker that gets workflow tasks of a queue has asked for them within the last minutes; raises RPCError."""
    return is_polled(await describe_queue(client, queue))


def is_polled(queue: DescribeTaskQueueResponse) -> bool:
    """Tell the same of a queue that is described already."""
    taking = find_taking(queue.versioning_info)
    return any(to_version(poller.deployment_options) in taking for poller in queue.pollers)


def _find_repeated(names: list[str]) -> list[int]:
    seen: set[str] = set()
    repeated: list[int] = []
    for position, name in enumerate(names):
        if name in seen:
            repeated.append(position)
        seen.add(name)
    return repeated
