"""The capacity workflow, one for each lane: it keeps the most messages a second that each worker has done."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from shared.keepers.capacity import (
        CAPACITY_MEMO,
        CAPACITY_WORKFLOW,
        MEASURED,
        WORKERS_KEPT,
        Measurement,
        WorkerCapacity,
        read_measured,
        read_measurement,
    )
    from workflows.description import describe_capacity
    from workflows.replay.cancellation import ignores_cancellation, set_details
    from workflows.replay.signal_handlers import IgnoresUnknownSignals, signal_handler

SIGNALS_PER_RUN = 500


@workflow.defn(name=CAPACITY_WORKFLOW)
class CapacityWorkflow(IgnoresUnknownSignals):
    """Keeps what workers report; they do so seldom, only when a rate is clearly higher than the last one reported."""

    @workflow.init
    def __init__(self, wire: dict[str, Any] | None = None) -> None:
        """Load the state of the previous run; the first run starts with nothing."""
        self._told = read_measured(wire or {})
        self._signals = 0

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any] | None = None) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Publish each change of the rates; for ever."""
        while True:
            signals = self._signals
            workflow.upsert_memo({CAPACITY_MEMO: self._dump()})
            set_details(describe_capacity(self._told))
            if self._signals >= SIGNALS_PER_RUN:
                # signal handlers are synchronous and nothing awaits before this, so no signal is lost
                workflow.continue_as_new(self._dump(), memo={CAPACITY_MEMO: self._dump()})
            await workflow.wait_condition(lambda signals=signals: self._signals > signals)

    def _dump(self) -> dict[str, Any]:
        return {worker: list(measured) for worker, measured in self._told.items()}

    @signal_handler(read_measurement, MEASURED)
    def measured(self, given: Measurement) -> None:
        """Keep the highest rate of a worker process; if there are too many, drop the one silent for longest."""
        self._told.pop(given.worker, None)
        self._told[given.worker] = WorkerCapacity(round(given.per_second, 2), round(workflow.time(), 3))
        while len(self._told) > WORKERS_KEPT:
            del self._told[next(iter(self._told))]
        self._signals += 1
