"""Keepers: a person closes and opens gates, and switches, limits and watches the use of idle capacity."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus

from activities.admission.gates import fetch_closings, send_closing, send_opening
from shared.errors import DormiceError, InvalidSetting
from shared.keepers.gates import (
    GATES_MAX,
    KIND_GATE,
    LANE_GATE,
    TENANT_GATE,
    GateClosure,
    check_gate,
    gates_workflow_id,
    implicit_gates,
    pick_closed,
    pick_implicit,
)
from shared.keepers.idle import IDLE_MEMO, IDLE_WORKFLOW, IdleLimits, PullCounts, idle_workflow_id
from shared.lanes import LANES, lane_of_queue, task_queue
from shared.messages.envelope import KIND_MAX_BYTES, KIND_PATTERN, TENANT_MAX_BYTES
from shared.settings import Settings
from shared.temporal.connect import describe_queue, translate_rpc_errors
from shared.temporal.workflow_calls import find_workflow, signal_beginning
from starter.starting.queries import is_polled


class GateControl:
    """Steers the gates of one task queue prefix; every method raises RetryLater or Misconfigured.

    `close` and `open` return which lane lacks the worker that what was said waits for; empty if it waits for none.
    """

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._prefix = settings.task_queue_prefix

    async def fetch(self, now: float) -> dict[str, GateClosure]:
        """Give the closed gates by name."""
        with translate_rpc_errors():
            return pick_closed(await fetch_closings(self._client, self._prefix), now)

    async def fetch_implicit(self, now: float) -> dict[str, GateClosure]:
        """Give the closed gates that messages need without a declaration; none if nothing can be read."""
        with contextlib.suppress(DormiceError):
            return pick_implicit(await self.fetch(now))
        return {}

    async def close(self, gate: str, closing: GateClosure) -> str:
        """Close a gate, replacing an earlier closing. Raises InvalidSetting for an invalid name or too many gates."""
        _check(gate)
        _check_implicit(gate)
        known = await self.fetch(closing.closed_at)
        if gate not in known and len(known) >= GATES_MAX:
            raise InvalidSetting(f"gates: {GATES_MAX} are closed, which is the most; open one first")
        with translate_rpc_errors():
            queue, lacking = await self._find_home()
            await send_closing(self._client, self._prefix, queue, gate, closing, replaces=True)

        return lacking

    async def open(self, gate: str) -> str:
        """Open a gate; an open gate stays open. Raises InvalidSetting for an invalid name."""
        _check(gate)
        with translate_rpc_errors():
            queue, lacking = await self._find_home()
            await send_opening(self._client, self._prefix, queue, gate)
        return lacking

    async def _find_home(self) -> tuple[str, str]:
        """Name the task queue of the gates' workflow, and its lane if that has no worker.

        A workflow that is still to be started gets the queue of a lane with workers, and what starts it needs none.
        """
        described = await find_workflow(self._client, gates_workflow_id(self._prefix))
        if described is not None and described.status is WorkflowExecutionStatus.RUNNING:
            queue = described.task_queue
            return queue, "" if await self._is_served(queue) else lane_of_queue(queue)
        queues = [task_queue(self._prefix, lane) for lane in LANES]
        for queue in queues:
            if await self._is_served(queue):
                return queue, ""

        return queues[0], ""

    async def _is_served(self, queue: str) -> bool:
        return is_polled(await describe_queue(self._client, queue))


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
        name = "on" if is_on else "off"
        await self._send(lane, name)

    async def limit(self, lane: str, changes: Mapping[str, Any]) -> None:
        """Change limits of a lane; those that are not named stay. Raises ValueError for invalid limits."""
        IdleLimits.load(changes)
        await self._send(lane, "limits", dict(changes))

    async def status(self, lane: str) -> IdleStatus:
        """Read the status from the server; no worker is needed."""
        with translate_rpc_errors():
            described = await find_workflow(self._client, idle_workflow_id(task_queue(self._prefix, lane)))

        if described is None:
            return IdleStatus(lane=lane, is_on=False, doing="", limits=IdleLimits(), pulled=PullCounts())

        kept: dict[str, Any] = (await described.memo()).get(IDLE_MEMO, {})
        details = await self._read_shift(described) if kept else dict[str, Any](state="waits for a worker of the lane")
        return IdleStatus(
            lane=lane,
            is_on=kept.get("is_on", False),
            doing=details.get("state", ""),
            limits=IdleLimits.load(kept.get("limits", {})),
            pulled=PullCounts.load(kept.get("pulled", {})) + PullCounts.load(details.get("pulled", {})),
        )

    async def _send(self, lane: str, signal: str, *arguments: Any) -> None:
        queue = task_queue(self._prefix, lane)
        with translate_rpc_errors():
            await signal_beginning(self._client, IDLE_WORKFLOW, idle_workflow_id(queue), queue, signal, *arguments)

    async def _read_shift(self, described: WorkflowExecutionDescription) -> dict[str, Any]:
        converter = self._client.data_converter
        for pull_loop in described.raw_description.pending_activities:
            details: dict[str, Any] = {}
            if pull_loop.heartbeat_details.payloads:
                (details,) = await converter.decode(pull_loop.heartbeat_details.payloads)
            if pull_loop.HasField("last_failure"):
                details["state"] = f"begun again after: {await converter.decode_failure(pull_loop.last_failure)}"
            return details
        return {}


def describe_lack(lane: str) -> str:
    """Say that a change of gates waits for a worker of a lane; empty if it waits for none."""
    return f", once lane {lane} has a worker; start one with 'dormice worker --lane {lane}'" if lane else ""


def describe_implicit(closings: Mapping[str, GateClosure], kind: str, lane: str, tenant: str, now: float) -> str:
    """Say which closed gate a message needs without declaring it; empty if there is none."""
    closed = (gate for gate in implicit_gates(kind, lane, tenant) if gate in closings)
    return next((closings[gate].describe(gate, now) for gate in closed), "")


def _check(gate: str) -> None:
    try:
        check_gate(gate)
    except ValueError as exc:
        raise InvalidSetting(f"gate: {exc}") from exc


def _check_implicit(gate: str) -> None:
    """Raise InvalidSetting if the gate of a kind, lane or tenant names none that there can be, so it holds nobody."""
    name = gate.partition(":")[2]
    problem = ""
    if gate.startswith(LANE_GATE) and name not in LANES:
        problem = f"names no lane; use one of {', '.join(LANE_GATE + lane for lane in LANES)}"
    elif gate.startswith(KIND_GATE) and (len(name) > KIND_MAX_BYTES or not KIND_PATTERN.fullmatch(name)):
        problem = "names no kind; write it as 'dormice handlers' prints it, for example kind:price"
    elif gate.startswith(TENANT_GATE) and not 0 < len(name.encode()) <= TENANT_MAX_BYTES:
        problem = f"names no tenant; give 1 to {TENANT_MAX_BYTES} bytes after {TENANT_GATE}"

    if problem:
        raise InvalidSetting(f"gate: {gate!r} {problem}")
