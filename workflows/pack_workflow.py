"""The pack workflow: many messages in one long-running workflow that wakes for the most urgent and runs all due."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState

with workflow.unsafe.imports_passed_through():
    from activities.server_calls import FORWARD
    from shared.lanes import LANES, prefix_of, task_queue
    from shared.messages.message import ENDS, MessageState
    from shared.messages.placement import PACK_WORKFLOW
    from shared.messages.signal_reading import is_text, require
    from shared.packs.counts import COUNTS_MEMO
    from shared.packs.cycle import to_input
    from shared.packs.entry import CYCLES_IN_FIRST_RUN, CYCLES_PER_RUN
    from shared.packs.names import AWAIT_CALLS, RUN_BATCH
    from shared.temporal.connect import to_raw, to_raw_bytes
    from shared.temporal.search_attributes import PackIndex, pack_updates
    from workflows import description, options
    from workflows.guards.cancellation import ignores_cancellation, set_details
    from workflows.guards.lost_calls import describe_loss, lost_call_outcome, missing_key_outcome
    from workflows.guards.sealed_signals import SEALED, describe_sealed
    from workflows.packs.calls.batch import Batch
    from workflows.packs.movable_timer import MovableTimer
    from workflows.packs.signals import PackSignals
    from workflows.packs.state import PackState


@workflow.defn(name=PACK_WORKFLOW)
class PackWorkflow(PackSignals):
    """Carries the messages of one pack for ever, in a series of runs of a few batches each."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        """Load what the starter or the previous run passed on; signals may arrive before `run`."""
        try:
            super().__init__(PackState(wire), wire.get(SEALED))
        except (TypeError, KeyError) as exc:
            raise ApplicationError(
                f"the input is no pack state ({exc}); start messages with dormice, not by hand", non_retryable=True
            ) from exc

        self._pack.entries.is_reading = _is_reading
        self._indexed = PackIndex.load(wire.get("indexed"))
        wire.clear()  # the SDK keeps the input as long as the run is cached, and so the first form of each message
        self._alarm = MovableTimer(self._stir)
        self._fault: BaseException | None = None
        self._ended_cycles = 0
        self._begun_batches = 0
        self._settings = _WorkerSettings()
        self._left_run = workflow.info().continued_run_id or ""

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any]) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Run what is due, sleep until more is due; for ever."""
        self.open_sealed_signals()
        for batch in list(self._pack.in_flight.batches.values()):
            self._follow(batch)  # the previous run began it, and its calls are still in flight

        while True:
            if self._fault is not None:
                raise self._fault
            await self._forward()
            if self._is_run_over():
                self._continue_as_new()

            self._begin_batches()
            self._publish()
            await self._sleep()

    def _stir(self) -> None:
        self._is_stirred = True

    def ignore_signal(self, name: str, problem: str) -> None:
        """Ignore a signal; those that change nothing fill a history too, so that this run may have to end."""
        super().ignore_signal(name, problem)
        if self._is_history_long():
            self._stir()

    def hold_signal(self, name: str, arguments: Sequence[Any]) -> None:
        """Hold a signal, as it is done with one that is ignored."""
        super().hold_signal(name, arguments)
        if self._is_history_long():
            self._stir()

    async def _sleep(self) -> None:
        """Wait until a message can wait no longer, a batch has answered or a signal has come."""
        self._is_stirred = False
        wake = self._pack.find_wake(self._open_lanes())
        # what is due and can't begin now needs no timer: it begins when a batch answers
        self._alarm.set(math.inf if wake <= workflow.time() else wake)

        sleeps_long = wake - workflow.time() > options.CONDENSED_FROM.total_seconds()
        if self._pack.in_flight.is_answered and (sleeps_long or self._is_run_full()):
            self._condense()
        await workflow.wait_condition(lambda: self._is_stirred)

    def _condense(self) -> None:
        if not workflow.unsafe.is_replaying():
            self._pack.summary()  # it is kept too, so that the entries need not be opened for it
            self._pack.entries.condense(self._pack.lane, workflow.time())

    def _open_lanes(self) -> list[str]:
        """Give the lanes on which a batch may begin: one at a time, and none while too many calls are in flight."""
        in_flight = self._pack.in_flight
        if len(in_flight.batches) >= options.CALLS_IN_FLIGHT_MAX:
            return []
        return [lane for lane in LANES if in_flight.has_begun_none(lane)]

    def _begin_batches(self) -> None:
        while True:
            # a reset run has an id of its own, and asks for the calls that are in flight under the first one
            token = f"{workflow.info().original_execution_run_id}/{self._begun_batches}"
            batch = self._pack.take(self._open_lanes(), workflow.time(), token)
            if batch is None:
                return
            self._begun_batches += 1
            self._follow(batch)

    def _follow(self, batch: Batch) -> None:
        """Run a batch, or go on with it, until none of its calls is in flight."""
        task = asyncio.create_task(self._run_batch(batch))
        task.add_done_callback(self._note_fault)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Keep an unexpected error of a batch for `run` to raise, so that it fails the workflow task and is noticed."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self._stir()

    async def _run_batch(self, batch: Batch) -> None:
        if not batch.queue:
            await self._begin_calls(batch)
        while batch.left:
            await self._await_calls(batch)

    async def _begin_calls(self, batch: Batch) -> None:
        """Let a worker begin a batch's calls; its answer has the outcomes of those that were quick."""
        try:
            answer = await self._execute_batch(batch)
        except ActivityError as exc:
            self._lose_batch(batch, exc)
        else:
            self._take_answer(batch, answer)

    async def _await_calls(self, batch: Batch) -> None:
        """Wait for those of a batch's calls that are still in flight; if their process dies, they have failed."""
        try:
            answer = await workflow.execute_activity(
                AWAIT_CALLS,
                {"token": batch.token, "positions": batch.left, "lane": batch.lane},
                task_queue=batch.queue,
                schedule_to_start_timeout=options.PROCESS_TIMEOUT,
                start_to_close_timeout=options.handler_timeout(batch.lane),
                heartbeat_timeout=LANES[batch.lane].heartbeat_timeout,
                retry_policy=options.ONCE,
                summary=f"{len(batch.left)} messages in flight",
            )
        except ActivityError as exc:
            self._note_ended(len(batch.left))
            self._pack.apply_to_left(batch, lost_call_outcome(exc), workflow.time())
            self._stir()
        else:
            self._take_answer(batch, answer)

    async def _execute_batch(self, batch: Batch) -> Any:
        pack = self._pack
        left_run = self._left_run
        self._left_run = ""

        return await workflow.execute_activity(
            RUN_BATCH,
            to_raw(
                {
                    "kind": pack.kind,
                    "lane": batch.lane,
                    "token": batch.token,
                    "pack_lane": pack.lane,
                    "spread": [pack.within.share, pack.within.coalesce],
                    "entries": list(map(to_input, batch.entries)),
                    "begun_at": workflow.time(),
                    "left_run": left_run,
                }
            ),
            task_queue=task_queue(prefix_of(workflow.info().task_queue), batch.lane),
            start_to_close_timeout=options.batch_timeout(batch.lane),
            heartbeat_timeout=LANES[batch.lane].heartbeat_timeout,
            retry_policy=options.BATCH_RETRY,
            summary=f"{len(batch.ids)} messages",
        )

    def _take_answer(self, batch: Batch, answer: dict[str, Any]) -> None:
        self._settings = _WorkerSettings(answer)
        self._pack.payload_max_bytes = answer["payload_max_bytes"] or self._pack.payload_max_bytes
        before = len(batch.left)
        batch.queue = answer["queue"]
        self._pack.apply_results(batch, answer["results"], workflow.time())
        self._note_ended(before - len(batch.left))
        self._stir()

    def _lose_batch(self, batch: Batch, exc: ActivityError) -> None:
        now = workflow.time()
        self._note_ended(len(batch.left))
        if (outcome := missing_key_outcome(exc)) is not None:
            self._pack.apply_to_left(batch, outcome, now)
        else:
            is_tried_out = exc.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
            tries = options.BATCH_RETRY.maximum_attempts if is_tried_out else 1
            self._pack.lose_batch(batch, f"the batch was lost: {describe_loss(exc)}", now, tries)
        self._stir()

    def _note_ended(self, cycles: int) -> None:
        self._ended_cycles += cycles

    def _is_run_full(self) -> bool:
        settings = self._settings
        # packs that were filled together would all continue as new in the same minutes, again and again
        is_first = workflow.info().continued_run_id is None
        share = settings.cycles_in_first_run if is_first else settings.cycles_per_run
        most = max(len(self._pack) * share, options.CONTINUE_AS_NEW_MIN)
        return self._ended_cycles > most or self._is_history_long()

    def _is_history_long(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_size() > options.HISTORY_BYTES_MAX

    def _is_run_over(self) -> bool:
        """Return whether to continue as new: with long histories at once, otherwise when there is something to run.

        A pack that sleeps in the run that it has filled leaves one state in the database. If it slept in the next one,
        there would be two until it wakes, because a run is deleted by way of the next run's first batch. Calls in
        flight are no hindrance: the next run asks their process for them.
        """
        pack = self._pack
        if not pack.in_flight.is_answered or not self._is_run_full():
            return False
        return self._is_history_long() or pack.has_due(self._open_lanes(), workflow.time())

    def _continue_as_new(self) -> NoReturn:
        """Go on in a new run; a signal that comes meanwhile makes the server repeat the task, so none is lost."""
        self._publish()
        # encoded at once: the error that ends a run keeps what this function holds until garbage is collected
        held = {SEALED: self.dump_sealed()} if self.sealed else {}
        wire = to_raw_bytes(self._pack.encode(indexed=self._indexed.dump(), **held))
        workflow.continue_as_new(wire, memo={COUNTS_MEMO: self._pack.counts(workflow.time())})

    async def _forward(self) -> None:
        """Send signals for other packs, in order; each stays queued until the server has accepted it."""
        while part := self._pack.forwarding[: options.FORWARDED_AT_ONCE]:
            pack = {**self._pack.heading(), "task_timeout": workflow.info().task_timeout.total_seconds()}
            await workflow.execute_activity(FORWARD, to_raw({"pack": pack, "strays": part}), **options.FORWARD_CALL)
            del self._pack.forwarding[: len(part)]

    def _publish(self) -> None:
        """Write what changed into the index, where readers find it without a worker."""
        summary = self._pack.summary()
        index = PackIndex(summary.due_at, summary.parked > 0, summary.earliest_at)
        updates = pack_updates(self._indexed, index, self._settings.index_after)
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] — the SDK leaves the type argument open
            self._indexed = index
        set_details(description.describe_pack(self._pack.kind, self._pack.lane, summary))

    @workflow.query
    def status(self, message_id: str) -> dict[str, Any] | None:
        """Where a message stands; None when the pack does not know it."""
        state = self._find(message_id)
        return None if state is None else description.describe_status(state, describe_sealed(self.sealed))

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


class _WorkerSettings:
    """What a batch's answer says of its worker's settings: as part of the history they never break a replay."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        given = answer or {}
        self.index_after: float = given.get("index_after", 60.0)
        self.cycles_per_run: float = given.get(CYCLES_PER_RUN, 1.0)
        self.cycles_in_first_run: float = given.get(CYCLES_IN_FIRST_RUN, 1.0)


def _is_reading() -> bool:
    """Return whether this is a query, or somebody who looks at a workflow from outside."""
    return not workflow.in_workflow() or workflow.unsafe.is_read_only()
