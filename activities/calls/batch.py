"""The activities of packs: one begins a batch's calls, the other waits for those that last longer than the batch."""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.calls.batch_calls import DEAF
from activities.calls.batch_run import BatchRun
from activities.calls.calls_in_flight import CallsInFlight
from activities.calls.dispatch import Dispatch
from activities.calls.heartbeats import beating
from activities.calls.slots import CallSlots
from activities.server_calls import ContinuedRuns
from shared.lanes import LANES, calls_queue
from shared.messages.json_value import encode_json
from shared.packs.cycle import STILL_IN_FLIGHT
from shared.packs.entry import CYCLES_IN_FIRST_RUN, CYCLES_PER_RUN
from shared.packs.names import AWAIT_CALLS, RUN_BATCH
from shared.temporal.connect import to_raw_bytes

ANSWER_BYTES_MAX = 1_800_000  # the server takes 2 MB at once; what does not fit is asked for again

RESULTS_KEPT = timedelta(minutes=10)
"""How long the results of slow calls are kept, for a pack that asks late because the server or all workers are busy.
What has been forgotten counts as lost, and is called again."""

DRAIN_PATIENCE = timedelta(seconds=5)
"""How long a process that ends waits until packs ask for its calls in flight."""
DRAIN_CHECK_SECONDS = 0.1


class BatchDispatch:
    """Runs batches; all batches of one process share the limit of handlers that work at once.

    The calls belong to the process, not to an activity: so a pack's run may end while some are in flight, and a slow
    one keeps nothing but its own message waiting.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._in_flight = CallsInFlight(CallSlots(dispatch.settings.handlers_at_once))
        self._runs: dict[str, BatchRun] = {}
        # how often, by token: the next run of a pack may ask before the question of the last one has ended
        self._awaited = Counter[str]()
        self._is_draining = False
        self.left_runs = ContinuedRuns()
        self.queue = calls_queue(dispatch.settings.task_queue_prefix, uuid.uuid4().hex)
        """The task queue of this process alone, on which packs ask for calls in flight."""

    @activity.defn(name=RUN_BATCH)
    async def run_batch(self, wire: Any) -> Any:
        """Begin a batch's calls, and answer within seconds: for each message its result, or that it is in flight.

        See `shared.packs.cycle` for results. A repeated batch calls no handler again that is still at work here.
        Nothing that a handler does makes this fail.
        """
        info = activity.info()
        token: str = wire["token"]
        if wire["left_run"]:
            self.left_runs.add(info.workflow_id or "", wire["left_run"])

        positions = range(len(wire["entries"]))
        known = self._runs.get(token)
        if known is not None and known.is_of(wire["entries"]):  # after a reset, another batch may have the same token
            return await self._find_answer(token, wire["lane"], known, positions, known.begin_again())

        run = BatchRun(self._dispatch, self._in_flight, wire, info.attempt - 1)
        self._runs[token] = run
        return await self._find_answer(token, wire["lane"], run, positions, run.begin())

    @activity.defn(name=AWAIT_CALLS)
    async def await_calls(self, wire: Any) -> Any:
        """Wait for calls in flight, at least for the first to end; answers as `run_batch` does.

        Raises ApplicationError when the process does not know the batch, or no longer.
        """
        token: str = wire["token"]
        run = self._runs.get(token)
        if run is None:
            raise ApplicationError("its worker process knows nothing of it any more", non_retryable=True)

        positions: list[int] = wire["positions"]
        run.keep_only(positions)
        return await self._find_answer(token, wire["lane"], run, positions, run.await_calls(positions))

    async def drain(self) -> None:
        """Let packs wait for calls in flight to their end from now on; returns when they do, or after a while."""
        self._is_draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_PATIENCE.total_seconds()):
                while self.has_unawaited_calls:  # noqa: ASYNC110 — packs end this, by calls from the server
                    await asyncio.sleep(DRAIN_CHECK_SECONDS)

    async def finish(self, seconds: float) -> None:
        """Wait until no call is in flight, but not for longer than that: then the process cancels what is.

        Until then packs must be able to ask, for a pack's run may end meanwhile, and the next one asks again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(run.is_at_work for run in self._runs.values()):  # noqa: ASYNC110 — as above
                    await asyncio.sleep(DRAIN_CHECK_SECONDS)

    @property
    def has_unawaited_calls(self) -> bool:
        """Whether there are calls in flight, or results of some, for which no pack asks at present."""
        return any(run.is_owed and not self._awaited[token] for token, run in self._runs.items())

    async def _find_answer(
        self, token: str, lane: str, run: BatchRun, positions: Sequence[int], waiting: Awaitable[None]
    ) -> Any:
        self._awaited[token] += 1
        try:
            has_receiver = await self._wait(lane, run, waiting)
            return self._answer(token, run, run.give(positions)) if has_receiver else None
        finally:
            self._note_answered(token)

    async def _wait(self, lane: str, run: BatchRun, waiting: Awaitable[None]) -> bool:
        """Wait for an answer; return whether anybody will receive it."""
        try:
            with beating(LANES[lane].heartbeat_timeout):
                await waiting
                if self._is_draining:
                    await run.finish()
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.not_found:
                return False  # the run that asked has ended, and its next run asks again
            if details is None or not details.worker_shutdown:
                raise
            await self._hand_back(run)

        return True

    def _note_answered(self, token: str) -> None:
        """Note that nobody waits for this answer any more; a batch that may be asked for again is kept for a while."""
        self._awaited[token] -= 1
        if not self._awaited[token]:
            del self._awaited[token]
        if token in self._runs:
            self._forget_later(token)

    async def _hand_back(self, run: BatchRun) -> None:
        """Cancel what is in flight, because the drain time is over."""
        run.hand_back()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEAF.total_seconds()):
                await run.finish()

    def _answer(self, token: str, run: BatchRun, results: list[Any]) -> Any:
        """Encode an answer; results for which it has no room count as in flight, so that the pack asks for them."""
        settings = self._dispatch.settings
        answer = {
            "queue": self.queue,
            "index_after": settings.index_after.total_seconds(),
            "payload_max_bytes": settings.payload_max_bytes,
            CYCLES_PER_RUN: settings.pack_cycles_per_run,
            CYCLES_IN_FIRST_RUN: settings.pack_cycles_per_run * run.share,
            "results": results,
        }
        encoded = encode_json(answer)
        fitting = len(results)
        while len(encoded) > ANSWER_BYTES_MAX:
            fitting //= 2
            results[fitting:] = [STILL_IN_FLIGHT] * (len(results) - fitting)
            encoded = encode_json(answer)

        if STILL_IN_FLIGHT not in results and not run.is_slow:
            self._runs.pop(token, None)
        return to_raw_bytes(encoded)

    def _forget_later(self, token: str) -> None:
        asyncio.get_running_loop().call_later(RESULTS_KEPT.total_seconds(), self._forget_if_ended, token)

    def _forget_if_ended(self, token: str) -> None:
        run = self._runs.get(token)
        if run is None or self._awaited[token]:
            return  # it is asked for again right now, and this is called again after the answer
        if run.is_at_work:
            self._forget_later(token)
        else:
            del self._runs[token]
