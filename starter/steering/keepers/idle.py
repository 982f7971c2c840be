"""Idle capacity control: switches it on and off for a lane, limits it, and reads its status."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError

from shared.keepers.idle import IDLE_MEMO, IDLE_WORKFLOW, IdleLimits, PullCounts, idle_workflow_id
from shared.lanes import task_queue
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, is_missing, signal_beginning, translate_rpc_error


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleStatus:
    """Status of a lane's pull-forward; `doing` says what it does now, empty while no worker runs it."""

    lane: str
    is_on: bool
    doing: str
    limits: IdleLimits
    pulled: PullCounts


class IdleControl:
    """Steers the idle workflows, which their first signal starts. Raises RetryLater or Misconfigured."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._prefix = settings.task_queue_prefix

    async def switch(self, lane: str, *, is_on: bool) -> None:
        """Switch a lane's use of its idle capacity on or off."""
        await self._send(lane, "on" if is_on else "off")

    async def limit(self, lane: str, changes: Mapping[str, Any]) -> None:
        """Change limits of a lane; those that are not named stay. Raises ValueError for invalid limits."""
        IdleLimits.load(changes)
        await self._send(lane, "limits", dict(changes))

    async def status(self, lane: str) -> IdleStatus:
        """Read the status from the server; no worker is needed."""
        handle = self._client.get_workflow_handle(idle_workflow_id(task_queue(self._prefix, lane)))
        try:
            described = await handle.describe(rpc_timeout=CALL_TIMEOUT)
        except RPCError as exc:
            if is_missing(exc):
                return IdleStatus(lane=lane, is_on=False, doing="", limits=IdleLimits(), pulled=PullCounts())
            raise translate_rpc_error(exc) from exc
        memo: Mapping[str, Any] = await described.memo()
        kept: dict[str, Any] = memo.get(IDLE_MEMO, {})
        details = await self._read_shift(described) if kept else dict[str, Any](state="waits for a worker of the lane")
        return IdleStatus(
            lane=lane,
            is_on=kept.get("is_on", False),
            doing=details.get("state", ""),
            limits=IdleLimits.load(kept.get("limits", {})),
            pulled=PullCounts.load(kept.get("pulled", {})).and_also(PullCounts.load(details.get("pulled", {}))),
        )

    async def _send(self, lane: str, signal: str, *arguments: Any) -> None:
        queue = task_queue(self._prefix, lane)
        try:
            await signal_beginning(self._client, IDLE_WORKFLOW, idle_workflow_id(queue), queue, signal, *arguments)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc

    async def _read_shift(self, described: WorkflowExecutionDescription) -> dict[str, Any]:
        """Read the last heartbeat of the pull loop and why it failed last; empty when it is not to run."""
        converter = self._client.data_converter
        for pull_loop in described.raw_description.pending_activities:
            details: dict[str, Any] = {}
            if pull_loop.heartbeat_details.payloads:
                (details,) = await converter.decode(pull_loop.heartbeat_details.payloads)
            if pull_loop.HasField("last_failure"):
                details["state"] = f"begun again after: {await converter.decode_failure(pull_loop.last_failure)}"
            return details
        return {}
