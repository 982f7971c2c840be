"""Gate control: a person lists, closes and opens gates."""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from activities.gates import fetch_closings, signal_gates
from shared.errors import InvalidSetting, RetryLater
from shared.keepers.gates import CLOSE, GATES_MAX, OPEN, GateClosure, check_gate, pick_closed
from shared.lanes import task_queue
from shared.settings import Settings
from shared.temporal.connect import translate_rpc_error

Answer = TypeVar("Answer")

HOME_LANE = "short"
"""Its workers run the gates workflow if a person closes the first gate; if a handler does, those of its lane."""


class GatesNotServed(RetryLater):
    """A gate was closed or opened, and no worker has processed that yet."""


class GateControl:
    """Steers the gates of one task queue prefix; every method raises RetryLater or Misconfigured."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._prefix = settings.task_queue_prefix

    async def fetch(self, now: float) -> dict[str, GateClosure]:
        """Give the closed gates by name; raises GatesNotServed while a change still waits for a worker."""
        found = await _translated(fetch_closings(self._client, self._prefix))
        if found is None:
            raise GatesNotServed(
                "gates: no worker has taken in yet what was closed; start one with 'dormice worker' and ask again"
            )
        return pick_closed(found, now)

    async def close(self, gate: str, closing: GateClosure) -> None:
        """Close a gate, replacing an earlier closing. Raises InvalidSetting for an invalid name or too many gates."""
        _check(gate)
        if gate not in (known := await self._known(closing.closed_at)) and len(known) >= GATES_MAX:
            raise InvalidSetting(f"gates: {GATES_MAX} are closed, which is the most; open one first")
        wire = {"gate": gate, "opens_at": closing.opens_at, "reason": closing.reason, "replaces": True}
        await self._send(CLOSE, wire)

    async def open(self, gate: str) -> None:
        """Open a gate; an open gate stays open. Raises InvalidSetting for an invalid name."""
        _check(gate)
        await self._send(OPEN, {"gate": gate})

    async def _known(self, now: float) -> dict[str, GateClosure]:
        try:
            return await self.fetch(now)
        except GatesNotServed:
            return {}

    async def _send(self, signal: str, wire: Mapping[str, object]) -> None:
        queue = task_queue(self._prefix, HOME_LANE)
        await _translated(signal_gates(self._client, self._prefix, queue, signal, wire))


def _check(gate: str) -> None:
    try:
        check_gate(gate)
    except ValueError as exc:
        raise InvalidSetting(f"gate: {exc}") from exc


async def _translated(call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except RPCError as exc:
        raise translate_rpc_error(exc) from exc
