"""The idle workflow, one for each lane: it spends idle capacity on the messages that are due next."""

from datetime import timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from shared.keepers.idle import IDLE_MEMO, IDLE_WORKFLOW, PULL_AHEAD, SHIFT_SECONDS, IdleLimits, PullCounts
    from shared.messages.signal_reading import read_checked_object, read_nothing
    from workflows.options import SERVER_CALL_RETRY
    from workflows.replay.cancellation import ignores_cancellation, set_details
    from workflows.replay.signal_handlers import IgnoresUnknownSignals, signal_handler

SHIFTS_PER_RUN = 100
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""How soon another worker takes over from one that was killed."""


@workflow.defn(name=IDLE_WORKFLOW)
class IdleWorkflow(IgnoresUnknownSignals):
    """Leads its lane by being the only workflow with its id: no election is needed, and its counts survive workers."""

    @workflow.init
    def __init__(self, wire: dict[str, Any] | None = None) -> None:
        """Load the state of the previous run; without one, idle work is off and the limits are the defaults."""
        given = wire or {}
        self._is_on = bool(given.get("is_on", False))
        self._limits = IdleLimits.load(given.get("limits", {}))
        self._pulled = PullCounts.load(given.get("pulled", {}))
        self._shifts = 0
        self._is_changed = False

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any] | None = None) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Spend idle capacity in shifts while switched on; for ever."""
        while True:
            self._is_changed = False
            self._publish()
            await workflow.wait_condition(lambda: self._is_on or self._is_changed)
            if self._is_on:
                await self._work_a_shift()
            if self._shifts >= SHIFTS_PER_RUN or workflow.info().is_continue_as_new_suggested():
                self._continue()

    async def _work_a_shift(self) -> None:
        """Run the activity until its shift is over, or until a signal changes something."""
        shift = workflow.start_activity(
            PULL_AHEAD,
            {"limits": self._limits.dump()},
            result_type=dict[str, Any],
            start_to_close_timeout=timedelta(seconds=2 * SHIFT_SECONDS),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=SERVER_CALL_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.wait_condition(lambda: self._is_changed or shift.done())
        if not shift.done():
            shift.cancel()
        try:
            self._pulled = self._pulled.and_also(PullCounts.load(await shift))
        except ActivityError as exc:
            if not is_cancelled_exception(exc):  # cancelled before a worker had started it
                raise
        self._shifts += 1

    def _continue(self) -> NoReturn:
        """Continue as new; signal handlers are synchronous and nothing awaits before this, so no signal is lost."""
        workflow.continue_as_new(self._dump(), memo={IDLE_MEMO: self._dump()})

    def _dump(self) -> dict[str, Any]:
        return {"is_on": self._is_on, "limits": self._limits.dump(), "pulled": self._pulled.dump()}

    def _publish(self) -> None:
        """Write the state to the memo, which can be read while no worker runs, and to the Web UI's details."""
        workflow.upsert_memo({IDLE_MEMO: self._dump()})
        pulled = self._pulled
        set_details(
            f"**{'on' if self._is_on else 'off'}** — pulled forward so far: {pulled.messages:,} messages, "
            f"{pulled.packs:,} packs, {pulled.mean_early_seconds:,.0f} s early on average"
        )

    @signal_handler(read_nothing)
    def on(self, _: None = None) -> None:
        """Spend idle capacity from now on."""
        self._switch(is_on=True)

    @signal_handler(read_nothing)
    def off(self, _: None = None) -> None:
        """Spend none from now on."""
        self._switch(is_on=False)

    @signal_handler(read_checked_object)
    def limits(self, wire: dict[str, Any]) -> None:
        """Change the limits that are named; invalid values change nothing."""
        try:
            self._limits = IdleLimits.load({**self._limits.dump(), **wire})
        except ValueError as exc:
            self.ignore_signal("limits", str(exc))
        else:
            self._is_changed = True

    def _switch(self, *, is_on: bool) -> None:
        self._is_changed = self._is_changed or self._is_on is not is_on
        self._is_on = is_on
