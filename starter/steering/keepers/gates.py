"""Gates as control sees them: listed, closed and opened by a person."""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from activities.gates import fetch_closings, signal_gates
from shared.errors import InvalidSetting, RetryLater
from shared.keepers.gates import CLOSE, GATES_MAX, OPEN, Closing, check_gate, pick_closed
from shared.lanes import task_queue
from shared.settings import Settings
from shared.temporal.connect import translate_rpc_error

Answer = TypeVar("Answer")

HOME_LANE = "short"
"""Its workers keep the gates where a person closes the first one; otherwise those of the lane where that happened."""


class GatesNotServed(RetryLater):
    """A gate was closed or opened, and no worker has taken it in yet."""


class GateControl:
    """Steers the gates of one task queue prefix; every method raises RetryLater or Misconfigured."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._prefix = settings.task_queue_prefix

    async def fetch(self, now: float) -> dict[str, Closing]:
        """Give the gates that are closed, by name; raises GatesNotServed while what was asked for waits for a worker."""
        found = await _translated(fetch_closings(self._client, self._prefix))
        if found is None:
            raise GatesNotServed(
                "gates: no worker has taken in yet what was closed; start one with 'dormice worker' and ask again"
            )
        return pick_closed(found, now)

    async def close(self, gate: str, closing: Closing) -> None:
        """Close a gate until then, also where it was closed for another time. Raises InvalidSetting for no name."""
        _check(gate)
        if gate not in (known := await self._known(closing.closed_at)) and len(known) >= GATES_MAX:
            raise InvalidSetting(f"gates: {GATES_MAX} are closed, which is the most; open one first")
        wire = {"gate": gate, "opens_at": closing.opens_at, "reason": closing.reason, "replaces": True}
        await self._send(CLOSE, wire)

    async def open(self, gate: str) -> None:
        """Open a gate; one that is open stays so. Raises InvalidSetting for no name."""
        _check(gate)
        await self._send(OPEN, {"gate": gate})

    async def _known(self, now: float) -> dict[str, Closing]:
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
