"""The batch activity: runs the handlers of many messages of a pack at once and gives an outcome for each message."""

import asyncio
import contextlib
import inspect
from datetime import timedelta
from typing import Any, cast

from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from activities.api.context import no_heartbeat
from activities.calls.dispatch import Dispatch, fail, stamp_end
from activities.calls.slots import CallSlots
from activities.reporting import record_gated
from activities.server_calls import ContinuedRuns
from shared.lanes import LANES
from shared.messages.json_value import encode_json
from shared.messages.message import Outcome
from shared.messages.placement import PackSpread
from shared.packs.cycle import apply_outcome, to_call
from shared.packs.entry import COMPRESSED, CYCLES_IN_FIRST_RUN, CYCLES_PER_RUN, STATE_BYTES_MAX, Entry, is_over
from shared.packs.local_calls import find_call
from shared.packs.names import AT_WORK, REPORT, RUN_BATCH
from shared.temporal.connect import to_raw

ANSWER_BYTES_MAX = 1_800_000  # the server takes 2 MB at once; a handler begins only while its largest outcome fits
OUTCOME_ROOM = 700  # most bytes of an outcome beside its payload: a reason of 300 characters and the numbers
DEAF_SECONDS = 4.0  # time that a handler gets to end after its cancellation; then its batch is answered without it
REPORT_EVERY = timedelta(seconds=10)
BEAT_CHECK_SECONDS = 0.2
CALL_TIMEOUT = timedelta(seconds=5)


class BatchDispatch:
    """Runs batches; all batches of one process share the limit of handlers that work at once."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._slots = CallSlots(dispatch.settings.handlers_at_once)
        self.left_runs = ContinuedRuns()

    @activity.defn(name=RUN_BATCH)
    async def run_batch(self, wire: Any) -> Any:
        """Run a batch's handlers and give the results by position; None: handed back, its handler has not begun.

        On lanes with heartbeats the results are outcomes, which the heartbeats carry too: a retry runs only the rest.
        On other lanes they are changes of the entries, with the outcome applied: no signal can reach a message
        meanwhile, and a pack that replays has nothing to decide. Nothing that a handler does makes this fail.
        """
        call = find_call(wire) if isinstance(wire, int) else wire
        if call is None:
            raise ApplicationError("its pack has left the cache before the batch began")
        if call["left_run"]:
            self.left_runs.add(activity.info().workflow_id or "", call["left_run"])
        return await _Run(self._dispatch, self._slots, call).run()


class _Run:
    def __init__(self, dispatch: Dispatch, slots: CallSlots, wire: Any) -> None:
        self._dispatch = dispatch
        self._slots = slots
        self._kind: str = wire["kind"]
        self._lane: str = wire["lane"]
        self._number: int = wire["batch"]
        self._begun_at: float = wire["begun_at"]  # the pack reads it back from its history
        self._pack_lane: str = wire["pack_lane"]
        self._spread = PackSpread(*wire["spread"])
        self._replay_time: float = wire["reached"]
        self._entries: list[Entry] = wire["entries"]
        self._is_local = LANES[self._lane].heartbeat_timeout is None
        self._decided: dict[int, Outcome] = {}
        self._outcomes: dict[int, Any] = {}
        self._reported: set[int] = set()
        self._left = ANSWER_BYTES_MAX - (STATE_BYTES_MAX if self._is_local else 0)
        self._outcome_max = dispatch.settings.payload_max_bytes + OUTCOME_ROOM
        self._tries_before = activity.info().attempt - 1
        self._loop = asyncio.get_running_loop()
        self._begun_last = self._loop.time()
        self._begin_before = self._begun_last + LANES[self._lane].batch_start.total_seconds()
        self._deadlines = dispatch.make_deadlines(self._kind, self._lane)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._at_work: set[int] = set()
        self._one_ended, self._all_ended = asyncio.Event(), asyncio.Event()

    async def run(self) -> Any:
        for details in activity.info().heartbeat_details:  # what the previous try had finished when its worker was lost
            self._outcomes = {int(n): wire for n, wire in details["outcomes"].items()}
            self._reported = set(details["reported"])
        if self._tries_before and not self._is_local:
            await self._leave_out_reported()
        beside: list[asyncio.Task[None]] = []
        if not self._is_local:
            beside = [asyncio.create_task(self._beat()), asyncio.create_task(self._report())]
        try:
            await self._call_all()
        finally:
            self._cancel_calls()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        ended_at, settings = stamp_end(self._dispatch.clock), self._dispatch.settings
        answer = {
            "index_after": settings.index_after.total_seconds(),
            "payload_max_bytes": settings.payload_max_bytes,
            COMPRESSED: settings.compress_packs,
            CYCLES_PER_RUN: settings.pack_cycles_per_run,
            CYCLES_IN_FIRST_RUN: settings.pack_cycles_per_run * self._spread.share,
            "begun_at": self._begun_at,
            "ended_at": ended_at,
        }
        positions = range(len(self._entries))
        if self._is_local:
            now = max(ended_at, self._begun_at, self._replay_time)  # the server's clock may be ahead
            return self._to_raw(answer | {"entries": [self._to_change(n, now) for n in positions]})
        return self._to_raw(answer | {"outcomes": list(map(self._unreported.get, positions))})

    def _to_raw(self, value: dict[str, Any]) -> RawValue:
        return to_raw(value, is_compressed=self._dispatch.settings.compress_packs)

    @property
    def _done(self) -> set[int]:
        return self._reported | self._outcomes.keys()

    @property
    def _unreported(self) -> dict[int, Any]:
        return {n: wire for n, wire in self._outcomes.items() if n not in self._reported}

    def _put_off(self, wait: Outcome, positions: set[int]) -> None:
        """Let messages wait at a closed gate, without a task for each."""
        for position in positions:
            self._note(position, wait)
        record_gated(self._dispatch.telemetry, self._kind, self._lane, len(positions))

    async def _call_all(self) -> None:
        """Call all handlers, until each has ended or has ignored its cancellation for too long."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._begin_before):
                    await self._begin_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._begun_last + self._deadlines.seconds + DEAF_SECONDS):
                    await self._wait_for_all()
        except asyncio.CancelledError:
            if not activity.is_worker_shutdown():
                raise
            self._cancel_calls()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEAF_SECONDS):
                    await self._wait_for_all()  # each call hands its message back
            return
        for position in list(self._at_work):
            self._abandon(position)

    async def _begin_all(self) -> None:
        """Begin the calls in their order, each as soon as there is room for it in this process and in the answer."""
        done, positions = self._done, range(len(self._entries))
        if (wait := await self._dispatch.find_wait(self._kind, self._lane)) is not None:
            now = stamp_end(self._dispatch.clock)
            waiting = {n for n in positions if not is_over(self._entries[n], now)} - done
            self._put_off(wait, waiting)
            done |= waiting
        todo = [n for n in positions if n not in done]
        while todo:
            if (fitting := self._left // self._outcome_max) < 1:
                if not self._at_work:
                    return
                self._one_ended.clear()
                await self._one_ended.wait()
                continue
            count = await self._slots.take(min(len(todo), fitting))
            begun, todo = todo[:count], todo[count:]
            self._begun_last = self._loop.time()
            self._left -= count * self._outcome_max
            self._at_work.update(begun)
            for position in begun:
                self._calls[position] = self._loop.create_task(self._call(position))

    def _cancel_calls(self) -> None:
        for position, call in self._calls.items():
            if call.done():
                continue
            if inspect.getcoroutinestate(cast("Any", call.get_coro())) == inspect.CORO_CREATED:
                self._end(position)  # a task that is cancelled before its first step never ends what it runs
            call.cancel()

    async def _wait_for_all(self) -> None:
        while self._at_work:
            self._all_ended.clear()
            await self._all_ended.wait()
        for call in self._calls.values():
            if call.done() and not call.cancelled():
                call.result()

    async def _call(self, position: int) -> None:
        try:
            call = to_call(self._entries[position], self._kind, self._pack_lane, self._tries_before)
            # a lost batch of many does not show which message broke it; a single one was called in each try
            attempts = call.attempt - 1 - (self._tries_before if len(self._entries) > 1 else 0)
            outcome = await self._dispatch.refuse_exhausted(call, attempts, self._spread) if attempts else None
            if outcome is None:
                outcome = await self._dispatch.run(call, no_heartbeat, self._deadlines, self._spread)
            if position in self._at_work:  # else it was given up
                self._note(position, outcome)
        finally:
            self._end(position)

    def _note(self, position: int, outcome: Outcome) -> None:
        content = outcome.payload if outcome.is_payload_changed else outcome.result
        self._left += self._outcome_max - OUTCOME_ROOM - (0 if content is None else len(encode_json(content)))
        if self._is_local:
            self._decided[position] = outcome
        else:
            self._outcomes[position] = outcome.dump()

    def _end(self, position: int) -> None:
        if position not in self._at_work:
            return
        self._at_work.remove(position)
        self._slots.give_back()
        self._one_ended.set()
        if not self._at_work:
            self._all_ended.set()

    def _abandon(self, position: int) -> None:
        """Go on without a handler that ignores its cancellation; its later outcome, if any, is discarded."""
        if (found := self._dispatch.registry.get(self._kind)) is None:
            return
        seconds = self._deadlines.seconds
        self._note(position, fail(found, f"no outcome within {seconds:g} s, and no heed of being cut off"))
        self._end(position)

    def _to_change(self, position: int, now: float) -> Entry | None:
        if (outcome := self._decided.get(position)) is None:
            return None
        return apply_outcome(
            self._entries[position], outcome, now, kind=self._kind, lane=self._pack_lane, spread=self._spread
        )

    async def _leave_out_reported(self) -> None:
        """Leave out what the previous try reported to the pack, because its last heartbeat may be lost."""
        # without an answer some handlers are called again
        with contextlib.suppress(RPCError, WorkflowQueryFailedError, TimeoutError):
            async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
                left: list[int] = await self._pack.query(AT_WORK, self._number)
                self._reported |= set(range(len(self._entries))) - set(left)

    @property
    def _pack(self) -> WorkflowHandle[Any, Any]:
        info = activity.info()
        return activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)

    async def _beat(self) -> None:
        timeout = LANES[self._lane].heartbeat_timeout or timedelta(0)
        reported, beat_at = -1, 0.0
        while True:
            if len(self._done) != reported or self._loop.time() - beat_at >= timeout.total_seconds() / 4:
                reported, beat_at = len(self._done), self._loop.time()
                outcomes = {str(n): wire for n, wire in self._unreported.items()}
                activity.heartbeat(self._to_raw({"outcomes": outcomes, "reported": sorted(self._reported)}))
            await asyncio.sleep(BEAT_CHECK_SECONDS)

    async def _report(self) -> None:
        """Report finished messages to the pack, so that quick ones don't wait for a slow one."""
        while True:
            await asyncio.sleep(REPORT_EVERY.total_seconds())
            if fresh := self._unreported:
                with contextlib.suppress(RPCError):  # then it is reported next time, or at the end
                    news = {
                        "batch": self._number,
                        "outcomes": sorted(fresh.items()),
                        "ended_at": stamp_end(self._dispatch.clock),
                    }
                    await self._pack.signal(REPORT, self._to_raw(news), rpc_timeout=CALL_TIMEOUT)
                    self._reported |= fresh.keys()
