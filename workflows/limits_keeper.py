"""The workflows that keep the turns of limits: they answer worker processes, and outlive any of them."""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from shared.keepers import limits
    from shared.temporal.connect import to_raw
    from workflows.guards.cancellation import ignores_cancellation, set_details
    from workflows.guards.signal_handlers import IgnoresUnknownSignals

ANSWERS_PER_RUN = 200  # a worker that takes over repeats as many at most, in well under a second


@workflow.defn(name=limits.LIMITS_WORKFLOW)
class LimitsWorkflow(IgnoresUnknownSignals):
    """Keeps the turns of the keys of one shard, only while they differ from a new key's."""

    @workflow.init
    def __init__(self, wire: dict[str, Any]) -> None:
        self._turns = limits.ShardTurns(wire)
        self._answers = 0

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any]) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Answer until this run's history is long enough; nothing awaits in an answer, so none is under way then."""
        set_details(f"**{len(self._turns):,} keys** whose turns counted when this run began")
        await workflow.wait_condition(self._is_run_full)
        workflow.continue_as_new(to_raw(self._turns.dump(workflow.time())))

    def _is_run_full(self) -> bool:
        return self._answers >= ANSWERS_PER_RUN or workflow.info().is_continue_as_new_suggested()

    @workflow.update(name=limits.TAKE)
    def take(self, wire: Any) -> dict[str, Any]:
        """Give turns to the calls of a worker process, and take back the leases of those that have ended."""
        self._answers += 1
        return self._turns.take(wire, workflow.time())

    @take.validator
    def check(self, wire: Any) -> None:
        """Refuse what can't be read, because an error in `take` would stop the workflow."""
        limits.check_requests(wire)
