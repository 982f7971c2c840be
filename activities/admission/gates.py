"""Gates as workers see them: which are closed, read from the server only when needed, at most once a second."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError

from shared.errors import PayloadKeyMissing
from shared.keepers import gates
from shared.keepers.gates import GateClosure
from shared.messages.message import Outcome
from shared.temporal.workflow_calls import read_memo, set_priority, signal_beginning

READ_EVERY_SECONDS = 1.0
STALE_SECONDS = 5.0  # a list older than this is read again before it counts, because gates may have been closed since
ASK_SECONDS = 2.0  # longest time that a handler's call waits for the server; then the last known state counts
ENOUGH = 0.9  # a closing that covers this share of the requested time is not sent again: calls in flight end one by one
LOOK_MIN_SECONDS = 60.0
SPREAD_SHARE = 0.25
SPREAD_MAX_SECONDS = 900.0
HIGHEST_PRIORITY = 1


class Gates:
    """Which gates are closed, shared by all handlers of one process.

    A closing by this process counts at once, until the server's list includes it. Without a server the last known state
    counts: a gate saves calls, nothing depends on it. The methods work only in activities, whose client they use.

    Every message needs its implicit gates, so they must cost nearly nothing while they are open: calls look at two
    attributes. `implicit` are the closed ones; from `fresh_until` on (seconds since the epoch), call `keep_fresh`.
    """

    def __init__(self, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self._prefix = prefix
        self._clock = clock
        self._shared: dict[str, GateClosure] = {}
        self._own: dict[str, GateClosure] = {}
        self._unsent: set[str] = set()
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self.implicit: dict[str, GateClosure] = {}
        self.fresh_until = 0.0

    async def find_closing(self, gate: str) -> GateClosure | None:
        """Return the closing of a gate; None while it is open."""
        if self._clock() - self._read_at >= READ_EVERY_SECONDS:
            await asyncio.wait([self._begin_reading()])
        found = self._find(gate)
        return found if found is not None and found.opens_at > self._clock() else None

    async def keep_fresh(self, now: float) -> None:
        """Read the list beside the calls that need it; only one that is unknown or stale is waited for."""
        reading = self._begin_reading()
        if now - self._read_at >= STALE_SECONDS:
            await asyncio.wait([reading])
        else:
            self.fresh_until = now + READ_EVERY_SECONDS

    def find_wait(self, kind: str, lane: str, tenant: str = "") -> Outcome | None:
        """Make the outcome of a message of which an implicit gate is closed; None while all are open."""
        now = self._clock()
        for gate in gates.implicit_gates(kind, lane, tenant):
            if (closing := self.implicit.get(gate)) is not None and closing.opens_at > now:
                return wait_at(gate, closing, now)
        return None

    async def close(self, gate: str, closing: GateClosure) -> None:
        """Close a gate for all processes; does nothing if it is closed for about as long already."""
        known = self._find(gate)
        now = self._clock()

        known_left = 0.0 if known is None else max(known.opens_at - now, 0.0)
        if known_left >= ENOUGH * (closing.opens_at - now):
            return

        self._own[gate] = closing
        self._note_implicit()
        self._unsent.add(gate)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS):
                await self._send_closures()

    def _find(self, gate: str) -> GateClosure | None:
        return self._own.get(gate) or self._shared.get(gate)

    def _note_implicit(self) -> None:
        self.implicit = gates.pick_implicit({**self._shared, **self._own})

    def _begin_reading(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        with contextlib.suppress(RPCError, TimeoutError, PayloadKeyMissing):
            async with asyncio.timeout(ASK_SECONDS):
                await self._send_closures()
                self._shared = await fetch_closings(activity.client(), self._prefix)

        self._read_at = now = self._clock()
        confirmed = (self._own.keys() & self._shared.keys()) - self._unsent
        self._own = gates.pick_closed({gate: self._own[gate] for gate in self._own.keys() - confirmed}, now)
        self._unsent &= self._own.keys()
        self._note_implicit()
        self.fresh_until = now + READ_EVERY_SECONDS

    async def _send_closures(self) -> None:
        """Send the closings that were not sent yet; a failed one is sent again with the next reading."""
        for gate in sorted(self._unsent):
            if (closing := self._own.get(gate)) is None:  # it has opened meanwhile
                continue
            with contextlib.suppress(RPCError):
                await send_closing(activity.client(), self._prefix, activity.info().task_queue, gate, closing)
                self._unsent.discard(gate)


def wait_at(gate: str, closing: GateClosure, now: float) -> Outcome:
    """Make the outcome of a message whose gate is closed: it comes back when the gate opens, spread over some time.

    Because a person may open the gate early, the message looks again after as long as the gate has been closed so far,
    and at least a minute. So a gate closed for good costs each message fewer and fewer looks, none of which calls its
    handler.
    """
    look_again = max(LOOK_MIN_SECONDS, now - closing.closed_at)
    after = min(closing.opens_at - now, look_again)
    spread = min(after * SPREAD_SHARE, SPREAD_MAX_SECONDS)

    return Outcome("gated", closing.describe(gate, now), after=after, tolerance=spread)


async def send_closing(
    client: Client, prefix: str, task_queue: str, gate: str, closing: GateClosure, *, replaces: bool = False
) -> None:
    """Close a gate for all; without `replaces` a later opening time that it has already stays. Raises RPCError."""
    wire = {"gate": gate, "opens_at": closing.opens_at, "reason": closing.reason, "replaces": replaces}
    await _signal(client, prefix, task_queue, gates.CLOSE, wire, first={gate: list(closing)})


async def send_opening(client: Client, prefix: str, task_queue: str, gate: str) -> None:
    """Open a gate for all; an open one stays open. Raises RPCError."""
    await _signal(client, prefix, task_queue, gates.OPEN, {"gate": gate}, first={})


async def _signal(
    client: Client, prefix: str, task_queue: str, signal: str, wire: Mapping[str, Any], *, first: Mapping[str, Any]
) -> None:
    """Send a signal to the gates' workflow; if that starts it, its memo has what the signal says, before any worker."""
    name = gates.gates_workflow_id(prefix)
    memo = {gates.GATES_MEMO: first}
    await signal_beginning(client, gates.GATES_WORKFLOW, name, task_queue, signal, wire, memo=memo)
    # a gate is closed when too much is due: its workflow's task must not wait behind that
    await set_priority(client, name, HIGHEST_PRIORITY)


async def fetch_closings(client: Client, prefix: str) -> dict[str, GateClosure]:
    """Read which gates are closed; no worker is needed. Raises RPCError."""
    memo = await read_memo(client, gates.gates_workflow_id(prefix)) or {}
    return gates.read_closings(memo.get(gates.GATES_MEMO, {}))
