"""The batches of a pack at work: which begin, how their calls are waited for, what becomes of those that are lost."""

import asyncio
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, RetryState

from shared.lanes import LANES, prefix_of, task_queue
from shared.messages.message import Outcome
from shared.packs.cycle import to_input
from shared.packs.entry import CYCLES_IN_FIRST_RUN, CYCLES_PER_RUN
from shared.packs.names import AWAIT_CALLS, RUN_BATCH
from shared.temporal.connect import to_raw
from workflows import options
from workflows.guards.lost_calls import count_as_lost, describe_loss, lost_call_outcome, missing_key_outcome
from workflows.packs.calls.batch import Batch
from workflows.packs.state import PackState


class WorkerSettings:
    """What a batch's answer says of its worker's settings: as part of the history they never break a replay."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        given = answer or {}
        self.index_after: float = given.get("index_after", 60.0)
        self.cycles_per_run: float = given.get(CYCLES_PER_RUN, 1.0)
        self.cycles_in_first_run: float = given.get(CYCLES_IN_FIRST_RUN, 1.0)


class Batches:
    """Runs the batches of a pack; each goes on beside the others until none of its calls is in flight."""

    def __init__(self, pack: PackState, stir: Callable[[], None]) -> None:
        """Run batches of `pack`; `stir` is called when one has changed something."""
        self._pack = pack
        self._stir = stir
        self._begun = 0
        self._left_run = workflow.info().continued_run_id or ""
        self._fault: BaseException | None = None
        self.settings = WorkerSettings()
        self.ended_cycles = 0
        """Cycles that have ended in this run."""

    def check(self) -> None:
        """Raise an unexpected error of a batch, so that it fails the workflow task and is noticed."""
        if self._fault is not None:
            raise self._fault

    def open_lanes(self) -> list[str]:
        """Give the lanes on which a batch may begin: one at a time, and none while too many calls are in flight."""
        in_flight = self._pack.in_flight
        if len(in_flight.batches) >= options.CALLS_IN_FLIGHT_MAX:
            return []
        return [lane for lane in LANES if in_flight.has_begun_none(lane)]

    def begin_due(self) -> None:
        """Begin batches of what is due."""
        while True:
            # a reset run has an id of its own, and asks for the calls that are in flight under the first one
            token = f"{workflow.info().original_execution_run_id}/{self._begun}"
            batch = self._pack.take(self.open_lanes(), workflow.time(), token)
            if batch is None:
                return
            self._begun += 1
            batch.begun_at = workflow.time()
            self.follow(batch)

    def follow(self, batch: Batch) -> None:
        """Run a batch, or go on with one of the run before, until none of its calls is in flight."""
        task = asyncio.create_task(self._run(batch))
        task.add_done_callback(self._note_fault)

    async def take_last_answers(self) -> None:
        """Take answers of batches that came in the same task as the signal that has ended this run.

        The SDK lets code run for a task's signals first, and only then for its timers and answers. The next run would
        ask for such an answer again, and its process may have ended meanwhile.
        """
        if not self._pack.in_flight.batches:
            return

        await workflow.sleep(options.LAST_ANSWERS)
        # conditions are looked at when all that came with the timer has been taken
        await workflow.wait_condition(lambda: True)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self._stir()

    async def _run(self, batch: Batch) -> None:
        if not batch.queue:
            await self._begin_calls(batch)
        while batch.left:
            await self._await_calls(batch)

    async def _begin_calls(self, batch: Batch) -> None:
        """Let a worker begin a batch's calls; its answer has the outcomes of those that were quick."""
        try:
            answer = await self._execute(batch)
        except ActivityError as exc:
            self._lose(batch, exc)
        else:
            self._take_answer(batch, answer)

    async def _await_calls(self, batch: Batch) -> None:
        """Wait for those of a batch's calls that are still in flight; if their process dies, they have failed."""
        latest = batch.begun_at + (options.handler_timeout(batch.lane) + options.PROCESS_TIMEOUT).total_seconds()
        if workflow.time() > latest:
            batch.asked_late += 1
        if batch.asked_late > options.ASKED_LATE_MAX:
            self._lose_left(batch, count_as_lost("its worker process did not answer"))
            return

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
            self._lose_left(batch, lost_call_outcome(exc))
        else:
            batch.asked_late = 0
            self._take_answer(batch, answer)

    def _lose_left(self, batch: Batch, outcome: Outcome) -> None:
        self.ended_cycles += len(batch.left)
        self._pack.apply_to_left(batch, outcome, workflow.time())
        self._stir()

    async def _execute(self, batch: Batch) -> Any:
        pack = self._pack
        left_run = self._left_run
        self._left_run = ""

        return await workflow.execute_activity(
            RUN_BATCH,
            to_raw(
                {
                    "kind": pack.config.kind,
                    "lane": batch.lane,
                    "token": batch.token,
                    "pack_lane": pack.config.lane,
                    "spread": [pack.config.within.share, pack.config.within.coalesce],
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
        self.settings = WorkerSettings(answer)
        self._pack.config.payload_max_bytes = answer["payload_max_bytes"] or self._pack.config.payload_max_bytes
        before = len(batch.left)
        batch.queue = answer["queue"]
        self._pack.apply_results(batch, answer["results"], workflow.time())
        self.ended_cycles += before - len(batch.left)
        self._stir()

    def _lose(self, batch: Batch, exc: ActivityError) -> None:
        now = workflow.time()
        self.ended_cycles += len(batch.left)
        if (outcome := missing_key_outcome(exc)) is not None:
            self._pack.apply_to_left(batch, outcome, now)
        else:
            is_tried_out = exc.retry_state == RetryState.MAXIMUM_ATTEMPTS_REACHED
            tries = options.BATCH_RETRY.maximum_attempts if is_tried_out else 1
            self._pack.lose_batch(batch, f"the batch was lost: {describe_loss(exc)}", now, tries)
        self._stir()
