"""A batch's run in a worker process: begins its calls, and keeps their results until its pack has them for sure."""

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from activities.api.context import no_heartbeat
from activities.calls.calls_in_flight import Call, CallsInFlight
from activities.calls.deadlines import Deadlines
from activities.calls.dispatch import Dispatch, fail, stamp_end
from activities.reporting import record_gated
from shared.lanes import LANES
from shared.messages.message import Outcome
from shared.messages.placement import PackSpread
from shared.packs.cycle import STILL_IN_FLIGHT, to_call, to_result
from shared.packs.entry import ID, VERSION, Entry, is_over

GATHER = timedelta(seconds=1.5)
"""How long first results wait for others: with the time to store them, none waits for more than two seconds."""

HOLD = timedelta(seconds=3)
"""How long a batch of which no call has ended keeps its pack from beginning another."""

DEAF = timedelta(seconds=4)
"""Time that a handler gets to end after its cancellation; then its message goes on without it."""


class BatchRun:
    """The calls of one batch, and what they have come to, by position."""

    def __init__(self, dispatch: Dispatch, in_flight: CallsInFlight, wire: dict[str, Any], tries_before: int) -> None:
        self._dispatch = dispatch
        self._in_flight = in_flight
        self._order = _Order(wire, tries_before)
        self._results: dict[int, Any] = {}
        self._calls: dict[int, Call] = {}
        self._fault: BaseException | None = None
        self._was_slow = False
        self._owed: set[int] = set()  # positions that were in flight in an answer, and in no answer since
        self._has_begun = asyncio.Event()
        self._has_result = asyncio.Event()
        self._is_idle = asyncio.Event()

    @property
    def share(self) -> float:
        """See `PackSpread`."""
        return self._order.spread.share

    def is_of(self, entries: list[Entry]) -> bool:
        """Return whether this is the run of these versions of messages."""
        return self._order.digest == _digest(entries)

    @property
    def is_at_work(self) -> bool:
        """Whether a call is in flight."""
        return bool(self._calls)

    @property
    def is_owed(self) -> bool:
        """Whether a pack has still to be given results, or has to wait for some."""
        return bool(self._calls or self._owed)

    @property
    def is_slow(self) -> bool:
        """Whether a call was in flight when the batch answered first."""
        return self._was_slow

    async def begin(self) -> None:
        """Begin the calls and wait for results, but not for long, whatever the handlers do.

        What has found no slot by then does not begin, and its result is None.
        """
        beginning = asyncio.create_task(self._begin_all())
        beginning.add_done_callback(self._note_begun)
        try:
            await self._wait_for_first(beginning)
            await self._wait_for_others()
        finally:
            beginning.cancel()
            self._has_begun.set()
            self._note_change()

    async def begin_again(self) -> None:
        """Wait for results of a batch that is given again, whose calls have begun or are just beginning."""
        await self._has_begun.wait()
        await self._wait_for_others()

    async def await_calls(self, positions: Sequence[int]) -> None:
        """Wait for calls in flight until the first has ended, and a little for the others."""
        if all(n in self._calls for n in positions):
            self._has_result.clear()
            await self._has_result.wait()
        await self._wait_for_others()

    def keep_only(self, positions: Sequence[int]) -> None:
        """Forget all but these positions, because the pack has the results of all others: most of a batch's bytes."""
        kept = frozenset(positions)
        self._order.forget_others(kept)
        self._results = {position: result for position, result in self._results.items() if position in kept}

    async def finish(self) -> None:
        """Wait until no call is in flight."""
        await self._is_idle.wait()

    def give(self, positions: Sequence[int]) -> list[Any]:
        """Give the results that there are; a call that has none yet counts as slow from now on."""
        if self._fault is not None:
            raise self._fault

        results: list[Any] = []
        for position in positions:
            call = self._calls.get(position)
            if call is None:
                self._owed.discard(position)
                results.append(self._results.get(position))
            else:
                self._was_slow = True
                self._owed.add(position)
                self._in_flight.let_be_slow(call)
                results.append(STILL_IN_FLIGHT)

        return results

    def hand_back(self) -> None:
        """Cancel the calls in flight, because the process ends; their messages are handed back."""
        for call in list(self._calls.values()):
            call.task.cancel()

    async def _wait_for_first(self, beginning: asyncio.Task[None]) -> None:
        first = asyncio.create_task(self._has_result.wait())
        try:
            await asyncio.wait({beginning, first}, return_when=asyncio.FIRST_COMPLETED)
            if self._calls and not first.done():
                await asyncio.wait({first}, timeout=HOLD.total_seconds())
        finally:
            first.cancel()

    async def _wait_for_others(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER.total_seconds()):
                await self._is_idle.wait()

    def _note_begun(self, beginning: asyncio.Task[None]) -> None:
        if not beginning.cancelled():
            self._fault = self._fault or beginning.exception()
        self._has_begun.set()
        self._note_change()

    def _note_change(self) -> None:
        if not self._calls and self._has_begun.is_set():
            self._is_idle.set()

    async def _begin_all(self) -> None:
        """Begin the calls in their order, each as soon as there is a slot for it."""
        order = self._order
        todo = await self._hold_at_gates()
        deadlines = self._dispatch.make_deadlines(order.kind, order.lane)
        patience = deadlines.seconds + DEAF.total_seconds()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LANES[order.lane].batch_start.total_seconds()):
                while todo:
                    count = await self._in_flight.slots.take(len(todo))
                    begun = todo[:count]
                    del todo[:count]
                    for position in begun:
                        self._begin_call(position, deadlines)
                    asyncio.get_running_loop().call_later(patience, self._abandon, begun)

    async def _hold_at_gates(self) -> list[int]:
        """Let messages wait at a closed gate, without a call for each; return the positions of all others."""
        order = self._order
        positions = list(range(len(order.entries)))
        wait = await self._dispatch.find_wait(order.kind, order.lane)
        if wait is None:
            return positions

        now = stamp_end(self._dispatch.clock)
        held = [n for n in positions if not is_over(order.entries[n], now)]
        for position in held:
            self._note(position, wait, now)
        record_gated(self._dispatch.telemetry, order.kind, order.lane, len(held))
        return [n for n in positions if n not in self._results]

    def _begin_call(self, position: int, deadlines: Deadlines) -> None:
        call = self._in_flight.begin(
            self._order.name_version(position), functools.partial(self._run, position, deadlines)
        )
        self._calls[position] = call
        call.task.add_done_callback(functools.partial(self._end, position))

    async def _run(self, position: int, deadlines: Deadlines) -> Outcome:
        order = self._order
        call = to_call(order.entries[position], order.kind, order.pack_lane, order.tries_before)
        attempts = call.attempt - 1
        if len(order.entries) > 1:  # a lost batch of many does not show which message broke it
            attempts -= order.tries_before
        if attempts:
            refused = await self._dispatch.refuse_exhausted(call, attempts, order.spread)
            if refused is not None:
                return refused

        return await self._dispatch.run(call, no_heartbeat, deadlines, order.spread)

    def _end(self, position: int, task: asyncio.Task[Outcome]) -> None:
        call = self._calls.pop(position, None)
        if call is None:
            return  # it was abandoned

        if task.cancelled():
            self._keep(position, None)
        elif (fault := task.exception()) is not None:
            self._fault = fault
            self._keep(position, None)
        else:
            outcome = task.result()
            # another batch with the same call gives the same moment, so that both come to one result
            call.ended_at = call.ended_at or outcome.ended_at or stamp_end(self._dispatch.clock)
            self._note(position, outcome, call.ended_at)

    def _note(self, position: int, outcome: Outcome, ended_at: float) -> None:
        order = self._order
        if outcome.verdict == "handed_back":
            self._keep(position, None)
            return

        # the server's clock may be ahead
        ended_at = max(ended_at, order.begun_at)
        entry = order.entries[position]
        result = to_result(entry, outcome, ended_at, kind=order.kind, lane=order.pack_lane, spread=order.spread)
        self._keep(position, result)

    def _keep(self, position: int, result: Any) -> None:
        self._results[position] = result
        self._has_result.set()
        self._note_change()

    def _abandon(self, positions: Sequence[int]) -> None:
        """Go on without handlers that ignore their cancellation; their later outcomes, if any, are discarded."""
        found = self._dispatch.registry.get(self._order.kind)
        now = stamp_end(self._dispatch.clock)

        for position in positions:
            call = self._calls.get(position)
            if call is None or found is None:
                continue
            del self._calls[position]
            self._in_flight.abandon(call)
            seconds = found.timeout_on(self._order.lane).total_seconds()
            failure = fail(found, f"no outcome within {seconds:g} s, and no heed of being cut off")
            self._note(position, failure, now)


class _Order:
    """What a pack asks a worker to run."""

    def __init__(self, wire: dict[str, Any], tries_before: int) -> None:
        self.kind: str = wire["kind"]
        self.lane: str = wire["lane"]
        self.pack_lane: str = wire["pack_lane"]
        self.begun_at: float = wire["begun_at"]
        self.spread = PackSpread(*wire["spread"])
        self.entries: list[Entry] = wire["entries"]
        self.digest = _digest(self.entries)  # the entries are forgotten one after the other
        self.tries_before = tries_before

    def forget_others(self, positions: frozenset[int]) -> None:
        """Forget the entries of all other positions."""
        self.entries = [entry if n in positions else [] for n, entry in enumerate(self.entries)]

    def name_version(self, position: int) -> str:
        """Name a version of a message, as its idempotency key does."""
        entry = self.entries[position]
        return f"{self.kind}:{entry[ID]}:{entry[VERSION]}"


def _digest(entries: list[Entry]) -> int:
    """Give a number that tells the versions of a batch from those of another one."""
    return hash(tuple((entry[ID], entry[VERSION]) for entry in entries))
