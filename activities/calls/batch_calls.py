"""The calls of a batch: its handlers at work, each from its slot to the result that its message's pack gets."""

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from activities.api.context import no_heartbeat
from activities.calls.batch_progress import BatchProgress
from activities.calls.calls_in_flight import CallsInFlight
from activities.calls.deadlines import Deadlines
from activities.calls.dispatch import Dispatch, fail, stamp_end
from activities.reporting import record_gated
from shared.lanes import LANES
from shared.messages.message import Outcome
from shared.messages.placement import PackSpread
from shared.packs.cycle import to_call, to_result
from shared.packs.entry import ID, VERSION, Entry, is_over

DEAF = timedelta(seconds=4)
"""Time that a handler gets to end after its cancellation; then its message goes on without it."""


class BatchRequest:
    """What a pack asks a worker to run."""

    def __init__(self, wire: dict[str, Any], tries_before: int) -> None:
        self.kind: str = wire["kind"]
        self.lane: str = wire["lane"]
        self.pack_lane: str = wire["pack_lane"]
        self.begun_at: float = wire["begun_at"]
        self.spread = PackSpread(*wire["spread"])
        self.entries: list[Entry] = wire["entries"]
        self.tries_before = tries_before
        self._digest = _digest(self.entries)  # the entries are forgotten one after the other

    def is_for(self, entries: list[Entry]) -> bool:
        """Return whether it asks for these versions of messages."""
        return self._digest == _digest(entries)

    def forget_others(self, positions: frozenset[int]) -> None:
        """Forget the entries of all other positions."""
        self.entries = [entry if n in positions else [] for n, entry in enumerate(self.entries)]

    def name_version(self, position: int) -> str:
        """Name a version of a message, as its idempotency key does."""
        entry = self.entries[position]
        return f"{self.kind}:{entry[ID]}:{entry[VERSION]}"


class BatchCalls:
    """Calls the handlers of one batch, and notes in its progress what each has come to."""

    def __init__(
        self, dispatch: Dispatch, in_flight: CallsInFlight, request: BatchRequest, progress: BatchProgress
    ) -> None:
        self._dispatch = dispatch
        self._in_flight = in_flight
        self._request = request
        self._progress = progress

    async def begin(self) -> None:
        """Begin the calls in their order, each as soon as there is a slot for it."""
        request = self._request
        todo = await self._hold_at_gates()
        deadlines = self._dispatch.make_deadlines(request.kind, request.lane)
        patience = deadlines.seconds + DEAF.total_seconds()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LANES[request.lane].batch_start.total_seconds()):
                while todo:
                    count = await self._in_flight.slots.take(len(todo))
                    begun = todo[:count]
                    del todo[:count]
                    for position in begun:
                        self._begin_one(position, deadlines)
                    asyncio.get_running_loop().call_later(patience, self._abandon, begun)

    def cancel(self) -> None:
        """Cancel the calls that are at work."""
        for call in list(self._progress.at_work.values()):
            call.task.cancel()

    async def _hold_at_gates(self) -> list[int]:
        """Let messages wait at a closed gate, without a call for each; return the positions of all others."""
        request = self._request
        positions = list(range(len(request.entries)))
        wait = await self._dispatch.find_wait(request.kind, request.lane)
        if wait is None:
            return positions

        now = stamp_end(self._dispatch.clock)
        held = [n for n in positions if not is_over(request.entries[n], now)]
        for position in held:
            self._note(position, wait, now)
        record_gated(self._dispatch.telemetry, request.kind, request.lane, len(held))
        return [n for n in positions if n not in self._progress.results]

    def _begin_one(self, position: int, deadlines: Deadlines) -> None:
        call = self._in_flight.begin(
            self._request.name_version(position), functools.partial(self._run, position, deadlines)
        )
        self._progress.at_work[position] = call
        call.task.add_done_callback(functools.partial(self._end, position))

    async def _run(self, position: int, deadlines: Deadlines) -> Outcome:
        request = self._request
        call = to_call(request.entries[position], request.kind, request.pack_lane, request.tries_before)
        attempts = call.attempt - 1
        if len(request.entries) > 1:  # a lost batch of many does not show which message broke it
            attempts -= request.tries_before
        if attempts:
            refused = await self._dispatch.refuse_exhausted(call, attempts, request.spread)
            if refused is not None:
                return refused

        return await self._dispatch.run(call, no_heartbeat, deadlines, request.spread)

    def _end(self, position: int, task: asyncio.Task[Outcome]) -> None:
        call = self._progress.at_work.pop(position, None)
        if call is None:
            return  # it was abandoned

        if task.cancelled():
            self._progress.keep(position, None)
        elif (fault := task.exception()) is not None:
            self._progress.fault = fault
            self._progress.keep(position, None)
        else:
            outcome = task.result()
            # another batch with the same call gives the same moment, so that both come to one result
            call.ended_at = call.ended_at or outcome.ended_at or stamp_end(self._dispatch.clock)
            self._note(position, outcome, call.ended_at)

    def _note(self, position: int, outcome: Outcome, ended_at: float) -> None:
        request = self._request
        if outcome.verdict == "handed_back":
            self._progress.keep(position, None)
            return

        # the server's clock may be ahead
        ended_at = max(ended_at, request.begun_at)
        entry = request.entries[position]
        result = to_result(entry, outcome, ended_at, kind=request.kind, lane=request.pack_lane, spread=request.spread)
        self._progress.keep(position, result)

    def _abandon(self, positions: Sequence[int]) -> None:
        """Go on without handlers that ignore their cancellation; their later outcomes, if any, are discarded."""
        found = self._dispatch.registry.get(self._request.kind)
        now = stamp_end(self._dispatch.clock)

        for position in positions:
            call = self._progress.at_work.get(position)
            if call is None or found is None:
                continue
            del self._progress.at_work[position]
            self._in_flight.abandon(call)
            seconds = found.timeout_on(self._request.lane).total_seconds()
            failure = fail(found, f"no outcome within {seconds:g} s, and no heed of being cut off")
            self._note(position, failure, now)


def _digest(entries: list[Entry]) -> int:
    """Give a number that tells the versions of a batch from those of another one."""
    return hash(tuple((entry[ID], entry[VERSION]) for entry in entries))
