"""The pack workflow: many messages in one long-running workflow that wakes for the most urgent and runs all due."""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities.server_calls import FORWARD
    from shared.messages.message import ENDS, MessageState
    from shared.messages.placement import PACK_WORKFLOW
    from shared.messages.signal_reading import is_text, require
    from shared.packs.counts import COUNTS_MEMO
    from shared.temporal.connect import to_raw, to_raw_bytes
    from shared.temporal.search_attributes import PackIndex, pack_updates
    from workflows import description, options
    from workflows.guards.cancellation import ignores_cancellation, set_details
    from workflows.guards.sealed_signals import SEALED, describe_sealed
    from workflows.movable_timer import MovableTimer
    from workflows.packs.batches import Batches
    from workflows.packs.run_limit import RunLimit
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
        self._batches = Batches(self._pack, self._stir)
        self._limit = RunLimit(self._pack, self._batches)

    @property
    def held_bytes(self) -> int:
        """About how much memory its messages take; a worker's cache is bounded by it."""
        return self._pack.messages.held_bytes

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any]) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Run what is due, sleep until more is due; for ever."""
        self.open_sealed_signals()
        for batch in list(self._pack.in_flight.batches.values()):
            self._batches.follow(batch)  # the previous run began it, and its calls are still in flight

        while True:
            self._batches.check()
            await self._forward()
            if self._limit.is_over:
                await self._batches.take_last_answers()
                self._continue_as_new()

            self._batches.begin_due()
            self._publish()
            await self._sleep()

    def _stir(self) -> None:
        self._is_stirred = True

    def ignore_signal(self, name: str, problem: str) -> None:
        """Ignore a signal; those that change nothing fill a history too, so that this run may have to end."""
        super().ignore_signal(name, problem)
        if self._limit.is_history_long:
            self._stir()

    def hold_signal(self, name: str, arguments: Sequence[Any]) -> None:
        """Hold a signal, as it is done with one that is ignored."""
        super().hold_signal(name, arguments)
        if self._limit.is_history_long:
            self._stir()

    async def _sleep(self) -> None:
        """Wait until a message can wait no longer, a batch has answered or a signal has come."""
        self._is_stirred = False
        wake = self._pack.messages.find_wake(self._batches.open_lanes())
        # what is due and can't begin now needs no timer: it begins when a batch answers
        timer = math.inf if wake <= workflow.time() else wake
        self._alarm.set(timer)

        sleeps_long = wake - workflow.time() > options.CLOSED_FROM.total_seconds()
        if self._pack.in_flight.is_answered and (sleeps_long or self._limit.is_full):
            self._close_entries()
        await workflow.wait_condition(lambda: self._is_stirred)

    def _close_entries(self) -> None:
        if not workflow.unsafe.is_replaying():
            self._pack.entries.close(workflow.time(), self._pack.config.within)

    def _continue_as_new(self) -> NoReturn:
        """Go on in a new run; a signal that comes meanwhile makes the server repeat the task, so none is lost."""
        self._publish()
        # encoded at once: the error that ends a run keeps what this function holds until garbage is collected
        held = {SEALED: self.dump_sealed()} if self.sealed else {}
        wire = to_raw_bytes(self._pack.encode(indexed=self._indexed.dump(), **held))
        workflow.continue_as_new(wire, memo={COUNTS_MEMO: self._pack.messages.counts(workflow.time())})

    async def _forward(self) -> None:
        """Send signals for other packs, in order; each stays queued until the server has accepted it."""
        while part := self._pack.forwarding.first_part():
            pack = {**self._pack.config.heading(), "task_timeout": workflow.info().task_timeout.total_seconds()}
            await workflow.execute_activity(FORWARD, to_raw({"pack": pack, "strays": part}), **options.FORWARD_CALL)
            del self._pack.forwarding[: len(part)]

    def _publish(self) -> None:
        """Write what changed into the index, where readers find it without a worker."""
        summary = self._pack.messages.summary()
        index = PackIndex(summary.due_at, summary.parked > 0, summary.earliest_at)
        updates = pack_updates(self._indexed, index, self._batches.settings.index_after)
        if updates:
            workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] — the SDK leaves the type argument open
            self._indexed = index
        set_details(description.describe_pack(self._pack.config.kind, self._pack.config.lane, summary))

    @workflow.query
    def status(self, message_id: str) -> dict[str, Any] | None:
        """Where a message stands; None when the pack does not know it."""
        state = self._find(message_id)
        return None if state is None else description.describe_status(state, describe_sealed(self.sealed))

    @workflow.query
    def known(self, message_id: str) -> dict[str, Any]:
        """All about a message; an unknown one gets an answer too, so that "not here" differs from "no answer"."""
        return {"status": self.status(message_id), "moved_to": self._pack.messages.moved_to(message_id)}

    @workflow.query
    def explain(self, message_id: str) -> dict[str, Any] | None:
        """Why a message is due when it is: one sentence and the last decisions."""
        state = self._find(message_id)
        return None if state is None else description.describe_decisions(state)

    def _find(self, message_id: str) -> MessageState | None:
        # the SDK does not check types of arguments; a query with a wrong one is answered with this error
        return self._pack.messages.find(require("the message's id", message_id, is_text, "a string"))

    @workflow.query
    def overview(self) -> dict[str, Any]:
        """How many messages there are, and what the pack waits for."""
        return description.describe_overview(self._pack.messages.summary()) | {
            "packs": self._pack.config.packs,
            "strays": len(self._pack.forwarding),
            "staying": len(self._pack.messages.leaving),
        }

    @workflow.query
    def page(self, request: dict[str, Any]) -> dict[str, Any]:
        """Messages that match a filter, in order of id, after a given id, up to a limit; and how many match in all."""
        is_over = request.get("state") in ENDS
        messages = self._pack.messages.finished() if is_over else self._pack.messages.alive()
        return description.page_of(messages, request)

    @workflow.query
    def due(self, edges: list[float]) -> dict[str, Any]:
        """Count by lane the messages that are due before each of the rising `edges`."""
        return {"lanes": description.count_due(self._pack.messages.alive(), edges)}

    @workflow.query
    def receipt(self, token: str) -> dict[str, Any] | None:
        """What became of the chunk or signal with this token; None when it is not known."""
        return self._pack.receipts.find(token)


def _is_reading() -> bool:
    """Return whether this is a query, or somebody who looks at a workflow from outside."""
    return not workflow.in_workflow() or workflow.unsafe.is_read_only()
