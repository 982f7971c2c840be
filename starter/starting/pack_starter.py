"""The pack starter: sends chunks of messages to their packs and reads the outcome of each message."""

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
    """Sends a chunk in one durable call, then queries the pack for the outcomes unless the call created the pack."""

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
            outcomes: dict[str, Any] | str = {KNOWN: _find_repeated(names), "refused": {}}
        else:
            outcomes = await self._find_out(chunk.layout, chunk.index, token)
        fates = self._to_fates(outcomes, len(names))
        run_id, attempts = called.answer.run_id, called.attempts
        return [
            Receipt(tag, name, outcome, run_id, reason, attempts)
            for tag, name, (outcome, reason) in zip(chunk.tags, names, fates, strict=True)
        ]

    def _to_fates(self, outcomes: dict[str, Any] | str, count: int) -> list[tuple[StartOutcome, str]]:
        """Give outcome and reason of each message of a chunk, in order."""
        if isinstance(outcomes, str):
            return [(StartOutcome.FAILED, outcomes)] * count
        fates = [(StartOutcome.STARTED, "")] * count
        for name, outcome in ((KNOWN, self._known), (STOPPED, StartOutcome.STOPPED), (REVISED, StartOutcome.REVISED)):
            for position in outcomes.get(name, ()):
                fates[position] = (outcome, "")
        for position, reason in outcomes["refused"].items():
            fates[int(position)] = (StartOutcome.REJECTED, reason)
        return fates

    async def _find_out(self, layout: Layout, index: int, token: str) -> dict[str, Any] | str:
        """Query the pack, and the packs to which it has forwarded messages that moved there."""
        outcomes = await self._ask(layout, index, token)
        if isinstance(outcomes, str):
            return outcomes
        for other, positions in outcomes.get("moved", {}).items():
            part = await self._find_out(layout, int(other), token)
            if isinstance(part, str):
                return part
            for fate in (KNOWN, REVISED, STOPPED):
                outcomes[fate] = [*outcomes.get(fate, []), *(positions[n] for n in part.get(fate, []))]
            outcomes["refused"] |= {str(positions[int(n)]): reason for n, reason in part["refused"].items()}
        return outcomes

    async def _ask(self, layout: Layout, index: int, token: str) -> dict[str, Any] | str:
        """Query the pack for the outcomes of a chunk; returns a sentence instead when the pack does not answer."""
        name = pack_workflow_id(layout.kind, index)
        pack = self._client.get_workflow_handle(name)
        give_up_at = time.monotonic() + self._settings.patience.total_seconds()
        attempts = 0
        while True:
            try:
                # the SDK repeats a query that timed out, so only an outer timeout limits it
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
    """Give the task queue of a pack if no worker has polled it within the last minutes.

    It may be another queue than ours: a pack stays where its kind began. Also None while the server does not answer;
    then the caller's patience decides.
    """
    try:
        queue = (await client.get_workflow_handle(pack_id).describe(rpc_timeout=CALL_TIMEOUT)).task_queue
        return None if await is_served(client, queue) else queue
    except RPCError:
        return None


async def is_served(client: Client, queue: str) -> bool:
    """Return whether a worker that gets a queue's workflow tasks has polled it within the last minutes.

    Raises RPCError.
    """
    return is_polled(await describe_queue(client, queue))


def is_polled(queue: DescribeTaskQueueResponse) -> bool:
    """Do what `is_served` does for a queue that is described already."""
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
