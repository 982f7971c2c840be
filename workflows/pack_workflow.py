"""The pack workflow: many messages in one long-running workflow that wakes for the most urgent and runs all due."""

import asyncio
import functools
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, RetryState
from temporalio.exceptions import TimeoutError as ActivityTimeout

with workflow.unsafe.imports_passed_through():
    from activities.server_calls import FORWARD
    from shared.lanes import LANES, prefix_of, task_queue
    from shared.messages.message import ENDS, SERIAL, MessageState, Outcome
    from shared.messages.placement import PACK_WORKFLOW
    from shared.messages.signal_reading import is_text, require
    from shared.packs.counts import COUNTS_MEMO
    from shared.packs.entry import (
        COMPRESSED,
        CYCLES_IN_FIRST_RUN,
        CYCLES_PER_RUN,
        CYCLES_PER_RUN_USUAL,
        is_ended,
        measure,
    )
    from shared.packs.local_calls import LocalCall, lend
    from shared.packs.names import AT_WORK, RUN_BATCH
    from shared.temporal.connect import to_raw, to_raw_bytes
    from shared.temporal.search_attributes import PackIndex, pack_updates
    from workflows import description, options
    from workflows.packs.batch import Batch
    from workflows.packs.signals import PackSignals
    from workflows.packs.state import PackState
    from workflows.replay.cancellation import ignores_cancellation, set_details
    from workflows.replay.history_length import BATCH_EVENTS, HistoryLength
    from workflows.replay.missing_key import missing_key_outcome
    from workflows.replay.movable_timer import MovableTimer
    from workflows.replay.signal_buffer import SignalBuffer


@workflow.defn(name=PACK_WORKFLOW)
class PackWorkflow(PackSignals):
    """Carries the messages of one pack for ever, in a series of runs of a few batches each."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        """Load what the starter or the previous run passed on; signals may arrive before `run`."""
        try:
            self._pack = PackState(wire)
        except (TypeError, KeyError) as exc:
            raise ApplicationError(
                f"the input is no pack state ({exc}); start messages with dormice, not by hand", non_retryable=True
            ) from exc
        self._pack.entries.is_reading = _is_reading
        self._indexed = PackIndex.load(wire.get("indexed"))
        wire.clear()  # the SDK keeps the input as long as the run is cached, and so the first form of each message
        self._index_after = 60.0
        self._batches: dict[int, Batch] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_settling = False  # while true, `run` waits: which signals arrive in this time may differ on replay
        self._fault: BaseException | None = None
        self._folded = 0
        self._cycles_per_run = CYCLES_PER_RUN_USUAL
        self._left_run = workflow.info().continued_run_id or ""
        # older code that has carried the pack on meanwhile has left this flag out of the input; the memo has it
        self._pack.is_started_serial = self._pack.is_started_serial or SERIAL in workflow.info().raw_memo
        self._signal_buffer = SignalBuffer(is_started_serial=self._pack.is_started_serial)
        self._pack.is_serial = self._signal_buffer.is_serial
        self._length = HistoryLength()
        self._alarm = MovableTimer(self._wake)
        self._is_at_wake = False  # true from a timer's end on until a local activity begins
        self._pack.reach(workflow.info().workflow_start_time.timestamp())

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any]) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Run what is due, sleep until more is due; for ever."""
        self._signal_buffer.begin()
        while True:
            if self._fault is not None:
                raise self._fault
            await self._forward()
            if self._is_run_over():
                await self._continue()
            self._begin_batches()
            self._publish()
            await self._sleep()

    def _is_run_over(self) -> bool:
        """Return whether to continue as new: with long histories at once, otherwise as late as possible.

        A pack that sleeps in the run that it has filled leaves one state in the database. If it slept in the next one,
        there would be two until it wakes, because a run is deleted by way of the next run's first batch.
        """
        if self._tasks or not self._is_run_full():
            return False
        is_late = self._signal_buffer.is_latest and not self._is_history_long
        return not is_late or self._pack.has_due(self._open_lanes())

    async def _continue(self) -> None:
        if not (self._signal_buffer.is_latest and self._is_at_wake):
            self._condense()  # now that the entries are at hand: after the timer it takes several times as long
            await self._settle()
        self._signal_buffer.release_all()  # no received signal still waits to be applied, so none is lost
        self._publish()
        # encoded at once: the error that ends a run keeps what this function holds until garbage is collected
        wire = to_raw_bytes(self._pack.encode(indexed=self._indexed.dump()), is_compressed=self._pack.is_compressed)
        # not from the memo that there is: it may be encrypted by a key that this worker lacks
        serial = {SERIAL: 1} if self._pack.is_started_serial else {}
        memo = {COUNTS_MEMO: self._pack.counts(workflow.time()), **serial}
        workflow.continue_as_new(wire, memo=memo)

    def _wake(self, moment: float) -> None:
        self._is_at_wake = True
        self._hear(lambda: self._pack.wake(moment))

    async def _forward(self) -> None:
        """Send signals for other packs, in order; each stays queued until the server has accepted it."""
        if self._pack.forwarding and self._signal_buffer.is_serial:
            # a local batch's result must be in the history before other packs continue from it
            await self._settle()
        while part := self._pack.forwarding[: options.FORWARDED_AT_ONCE]:
            self._hold_signals()
            pack = {**self._pack.heading(), "task_timeout": workflow.info().task_timeout.total_seconds()}
            call = {"pack": pack, "strays": part}
            activity_id = self._signal_buffer.next_activity_id()
            await workflow.execute_local_activity(FORWARD, call, activity_id=activity_id, **options.SERVER_CALL)
            del self._pack.forwarding[: len(part)]

    def _begin_batches(self) -> None:
        while (batch := self._pack.take(self._open_lanes(), workflow.time())) is not None:
            self._batches[batch.number] = batch
            if _is_local(batch):
                self._hold_signals()
            task = self._tasks[batch.number] = asyncio.create_task(self._run_batch(batch))
            task.add_done_callback(self._note_fault)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Keep an unexpected error of a batch for `run` to raise, so that it fails the workflow task and is noticed."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self._is_stirred = True

    def _hold_signals(self) -> None:
        # during a local activity neither timers nor signals may take effect
        self._is_at_wake = False
        self._signal_buffer.hold()
        self._alarm.set(math.inf)

    def _open_lanes(self) -> list[str]:
        # a full run starts no more batches, because it continues as new only when none is running
        if self._is_history_long:
            return []
        busy = [self._batches[number].lane for number in self._tasks]
        return [lane for lane in LANES if busy.count(lane) < options.BATCHES_MAX[lane]]

    async def _sleep(self) -> None:
        """Wait until a message can wait no longer, a batch has ended or a signal has come."""
        if not self._tasks:  # each of them is about to begin an activity
            self._signal_buffer.exclude_older_workers()
        is_holding = any(map(_is_local, self._batches.values()))
        self._is_stirred = False
        if not is_holding:
            wake = self._pack.find_wake(self._open_lanes())
            # due messages that can't begin now need no timer: they begin when a batch ends
            self._alarm.set(math.inf if wake <= self._pack.replay_time else wake)
            self._signal_buffer.release_when_idle(lambda: self._is_stirred)
            sleeps_long = wake - workflow.time() > options.CONDENSED_FROM.total_seconds()
            if (sleeps_long or self._is_run_full()) and not (self._tasks or self._is_stirred):
                self._condense()
        await workflow.wait_condition(lambda: self._is_stirred and not self._is_settling)

    def _condense(self) -> None:
        if not workflow.unsafe.is_replaying():
            self._pack.summary()  # it is kept too, so that the entries need not be opened for it
            self._pack.entries.condense(self._pack.lane, workflow.time())

    async def _run_batch(self, batch: Batch) -> None:
        is_local = _is_local(batch)
        try:
            answer = await self._execute(batch)
        except FailureError as exc:
            ending = self._find_ending(batch, exc)
        else:
            if is_local:
                batch = await self._take_over(batch, answer)
            ending = functools.partial(self._end, batch, answer)
        if is_local:
            ending()
            self._is_stirred = True
        else:
            self._hear(ending)

    def _find_ending(self, batch: Batch, exc: FailureError) -> Callable[[], None]:
        is_serial = self._signal_buffer.is_serial
        if (missing_key := missing_key_outcome(exc)) is not None and not (is_serial and _is_uncertain(batch)):
            return functools.partial(self._put_off, batch, missing_key)
        cause = exc.cause if isinstance(exc, ActivityError) else exc  # local activities raise the cause itself
        took = options.batch_timeout(batch.lane) if isinstance(exc, ActivityTimeout) else timedelta(0)
        # each try has called the handler of a single message
        is_tried_out = isinstance(exc, ActivityError) and exc.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
        tries = options.BATCH_RETRY.maximum_attempts if is_serial and is_tried_out else 1
        return functools.partial(self._lose, batch, f"the batch was lost: {cause}", took, tries)

    async def _take_over(self, batch: Batch, answer: dict[str, Any]) -> Batch:
        """Apply a local batch's result to its unfinished messages; return the batch as its begin time made it."""
        begun_at: float = answer["begun_at"]
        if batch.until not in (None, begun_at):
            batch = self._pack.rebuild_batch(batch, begun_at)
        self._pack.reach(begun_at)
        self._pack.apply_local(batch, answer["entries"], max(self._pack.replay_time, answer["ended_at"]))
        if any(entry is not None and is_ended(entry) for entry in answer["entries"]):
            self._is_settling = self._signal_buffer.is_serial
            await self._settle()
            self._is_settling = False
        return batch

    def _end(self, batch: Batch, answer: dict[str, Any]) -> None:
        self._index_after = answer["index_after"]
        self._cycles_per_run = answer.get(CYCLES_PER_RUN, CYCLES_PER_RUN_USUAL)
        if workflow.info().continued_run_id is None:
            # packs that were filled together would all continue as new in the same minutes, again and again
            self._cycles_per_run = answer.get(CYCLES_IN_FIRST_RUN, self._cycles_per_run)
        self._pack.payload_max_bytes = answer.get("payload_max_bytes", 0) or self._pack.payload_max_bytes
        self._pack.is_compressed = answer.get(COMPRESSED, self._pack.is_compressed)
        if _is_local(batch):
            self._pack.finish(batch, answer["entries"], max(self._pack.replay_time, answer["ended_at"]))
        else:
            outcomes: list[dict[str, Any] | None] = answer["outcomes"]
            self._count(0, measure(outcomes) + measure(batch.entries))
            self._apply_outcomes(batch, enumerate(outcomes), answer["ended_at"])
        self._forget(batch)

    def _lose(self, batch: Batch, reason: str, took: timedelta, tries: int) -> None:
        if _is_uncertain(batch):
            workflow.logger.warning("messages are tried again", extra={"count": len(batch.ids), "reason": reason})
            self._pack.undo_batch(batch)
            self._forget(batch, 1 if self._signal_buffer.is_serial else None)
            return
        now = self._pack.replay_time + took.total_seconds() if _is_local(batch) else workflow.time()
        self._pack.batch_failed(batch, reason, now, tries)
        self._forget(batch)

    def _put_off(self, batch: Batch, outcome: Outcome) -> None:
        self._pack.apply_outcomes(batch, ((n, outcome) for n in range(len(batch.ids))), workflow.time())
        self._forget(batch)

    def _forget(self, batch: Batch, cycles: int | None = None) -> None:
        self._count(BATCH_EVENTS)
        self._folded += len(batch.ids) if cycles is None else cycles
        del self._batches[batch.number], self._tasks[batch.number]

    async def _execute(self, batch: Batch) -> Any:
        left_run, self._left_run = self._left_run, ""
        call = LocalCall(
            {
                "kind": self._pack.kind,
                "lane": batch.lane,
                "batch": batch.number,
                "pack_lane": self._pack.lane,
                "spread": [self._pack.within.share, self._pack.within.coalesce],
                "entries": batch.entries,
                "reached": self._pack.replay_time,
                "begun_at": workflow.time() if batch.until is None else batch.until,
                "left_run": left_run,
            }
        )
        alike: dict[str, Any] = {
            "start_to_close_timeout": options.batch_timeout(batch.lane),
            "summary": f"{len(batch.ids)} messages",
            "activity_id": self._signal_buffer.next_activity_id(),
        }
        if _is_local(batch):
            return await workflow.execute_local_activity(RUN_BATCH, lend(call), retry_policy=options.ONCE, **alike)
        return await workflow.execute_activity(
            RUN_BATCH,
            to_raw(call, is_compressed=self._pack.is_compressed),
            task_queue=task_queue(prefix_of(workflow.info().task_queue), batch.lane),
            heartbeat_timeout=LANES[batch.lane].heartbeat_timeout,
            retry_policy=options.BATCH_RETRY,
            **alike,
        )

    def _publish(self) -> None:
        # only a local batch's result says which messages were in it, so until then the summary may differ on replay
        if self._signal_buffer.is_serial and any(map(_is_local, self._batches.values())):
            return
        summary = self._pack.summary()
        index = PackIndex(summary.due_at, summary.parked > 0, summary.earliest_at)
        updates = pack_updates(self._indexed, index, self._index_after)
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] — the SDK leaves the type argument open
            self._indexed = index
        set_details(description.describe_pack(self._pack.kind, self._pack.lane, summary))

    def _is_run_full(self) -> bool:
        most = max(len(self._pack) * self._cycles_per_run, options.CONTINUE_AS_NEW_LEAST)
        return self._folded > most or self._is_history_long

    async def _settle(self) -> None:
        """Wait on a short timer, as the message workflow does, so that the end of a run or message loses no signal."""
        self._signal_buffer.exclude_older_workers()
        self._signal_buffer.release_when_idle()
        await workflow.sleep(options.SETTLE_DELAY, summary="settle before the end")

    @workflow.query
    def status(self, message_id: str) -> dict[str, Any] | None:
        """Where a message stands; None when the pack does not know it."""
        state = self._find(message_id)
        return None if state is None else description.describe_status(state, self._signal_buffer.waiting)

    @workflow.query
    def known(self, message_id: str) -> dict[str, Any]:
        """All about a message; an unknown one gets an answer too, so that "not here" differs from "no answer"."""
        return {"status": self.status(message_id), "moved_to": self._pack.moved_to(message_id)}

    @workflow.query
    def explain(self, message_id: str) -> dict[str, Any] | None:
        """Why a message is due when it is: one sentence and the last decisions."""
        state = self._find(message_id)
        return None if state is None else description.describe_decisions(state)

    def _find(self, message_id: str) -> MessageState | None:
        # the SDK does not check types of arguments; a query with a wrong one is answered with this error
        return self._pack.find(require("the message's id", message_id, is_text, "a string"))

    @workflow.query(name=AT_WORK)
    def at_work(self, batch_number: int) -> list[int]:
        """Positions in a batch of the messages whose outcomes the pack still waits for."""
        batch = self._batches.get(batch_number)
        return [] if batch is None else self._pack.find_at_work(batch)

    @workflow.query
    def overview(self) -> dict[str, Any]:
        """How many messages there are, and what the pack waits for."""
        return description.describe_overview(self._pack.summary()) | {
            "packs": self._pack.packs,
            "strays": len(self._pack.forwarding),
            "staying": len(self._pack.leaving),
        }

    @workflow.query
    def page(self, request: dict[str, Any]) -> dict[str, Any]:
        """Messages that match a filter, in order of id, after a given id, up to a limit; and how many match in all."""
        is_over = request.get("state") in ENDS
        return description.page_of(self._pack.finished() if is_over else self._pack.alive(), request)

    @workflow.query
    def due(self, edges: list[float]) -> dict[str, Any]:
        """Count by lane the messages that are due before each of the rising `edges`."""
        return {"lanes": description.count_due(self._pack.alive(), edges)}

    @workflow.query
    def receipt(self, token: str) -> dict[str, Any] | None:
        """What became of the chunk or signal with this token; None when it is not known."""
        return self._pack.receipts.find(token)


def _is_reading() -> bool:
    """Return whether this is a query, or somebody who looks at a workflow from outside."""
    return not workflow.in_workflow() or workflow.unsafe.is_read_only()


def _is_local(batch: Batch) -> bool:
    return LANES[batch.lane].heartbeat_timeout is None


def _is_uncertain(batch: Batch) -> bool:
    """Return whether a lost batch may hold other messages on replay: only its result would have said which."""
    return _is_local(batch) and batch.until is not None
