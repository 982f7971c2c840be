"""A batch's run in a worker process: begins its calls, and keeps their results until its pack has them for sure."""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from activities.calls.batch_calls import BatchCalls, BatchRequest
from activities.calls.batch_progress import BatchProgress
from activities.calls.calls_in_flight import CallsInFlight
from activities.calls.dispatch import Dispatch
from shared.packs.cycle import STILL_IN_FLIGHT
from shared.packs.entry import Entry

GATHER = timedelta(seconds=1.5)
"""How long first results wait for others: with the time to store them, none waits for more than two seconds."""

HOLD = timedelta(seconds=3)
"""How long a batch of which no call has ended keeps its pack from beginning another."""


class BatchRun:
    """The calls of one batch, and what they have come to, by position."""

    def __init__(self, dispatch: Dispatch, in_flight: CallsInFlight, wire: dict[str, Any], tries_before: int) -> None:
        self._in_flight = in_flight
        self._request = BatchRequest(wire, tries_before)
        self._progress = BatchProgress()
        self._calls = BatchCalls(dispatch, in_flight, self._request, self._progress)
        self._was_slow = False
        self._owed: set[int] = set()  # positions that were in flight in an answer, and in no answer since

    @property
    def share(self) -> float:
        """See `PackSpread`."""
        return self._request.spread.share

    def is_of(self, entries: list[Entry]) -> bool:
        """Return whether this is the run of these versions of messages."""
        return self._request.is_for(entries)

    @property
    def is_at_work(self) -> bool:
        """Whether a call is in flight."""
        return bool(self._progress.at_work)

    @property
    def is_owed(self) -> bool:
        """Whether a pack has still to be given results, or has to wait for some."""
        return bool(self._progress.at_work or self._owed)

    @property
    def is_slow(self) -> bool:
        """Whether a call was in flight when the batch answered first."""
        return self._was_slow

    async def begin(self) -> None:
        """Begin the calls and wait for results, but not for long, whatever the handlers do.

        What has found no slot by then does not begin, and its result is None.
        """
        beginning = asyncio.create_task(self._calls.begin())
        beginning.add_done_callback(self._note_begun)
        try:
            await self._wait_for_first(beginning)
            await self._wait_for_others()
        finally:
            beginning.cancel()
            self._progress.note_begun()

    async def begin_again(self) -> None:
        """Wait for results of a batch that is given again, whose calls have begun or are just beginning."""
        await self._progress.has_begun.wait()
        await self._wait_for_others()

    async def await_calls(self, positions: Sequence[int]) -> None:
        """Wait for calls in flight until the first has ended, and a little for the others."""
        if all(n in self._progress.at_work for n in positions):
            self._progress.has_result.clear()
            await self._progress.has_result.wait()
        await self._wait_for_others()

    def keep_only(self, positions: Sequence[int]) -> None:
        """Forget all but these positions, because the pack has the results of all others: most of a batch's bytes."""
        kept = frozenset(positions)
        self._request.forget_others(kept)
        self._progress.forget_others(kept)

    async def finish(self) -> None:
        """Wait until no call is in flight."""
        await self._progress.is_idle.wait()

    def give(self, positions: Sequence[int]) -> list[Any]:
        """Give the results that there are; a call that has none yet counts as slow from now on."""
        progress = self._progress
        if progress.fault is not None:
            raise progress.fault

        results: list[Any] = []
        for position in positions:
            call = progress.at_work.get(position)
            if call is None:
                self._owed.discard(position)
                results.append(progress.results.get(position))
            else:
                self._was_slow = True
                self._owed.add(position)
                self._in_flight.let_be_slow(call)
                results.append(STILL_IN_FLIGHT)

        return results

    def hand_back(self) -> None:
        """Cancel the calls in flight, because the process ends; their messages are handed back."""
        self._calls.cancel()

    async def _wait_for_first(self, beginning: asyncio.Task[None]) -> None:
        first = asyncio.create_task(self._progress.has_result.wait())
        try:
            await asyncio.wait({beginning, first}, return_when=asyncio.FIRST_COMPLETED)
            if self._progress.at_work and not first.done():
                await asyncio.wait({first}, timeout=HOLD.total_seconds())
        finally:
            first.cancel()

    async def _wait_for_others(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER.total_seconds()):
                await self._progress.is_idle.wait()

    def _note_begun(self, beginning: asyncio.Task[None]) -> None:
        if not beginning.cancelled():
            self._progress.fault = self._progress.fault or beginning.exception()
        self._progress.note_begun()
