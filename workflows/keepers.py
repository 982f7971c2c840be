"""Workflows that keep something for everybody in their memo, which can be read while no worker runs."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.server_calls import GROW_PACKS
    from shared.keepers import capacity, gates, idle
    from shared.messages.placement import GROW, LAYOUT_MEMO, LAYOUT_WORKFLOW, Layout, find_next_count, kind_of_packs
    from shared.messages.signal_reading import read_checked_object, read_nothing
    from shared.packs.entry import to_heading
    from shared.packs.reading import read_pack_count
    from workflows import options
    from workflows.description import describe_capacity, describe_gates, describe_layout
    from workflows.guards.cancellation import ignores_cancellation, set_details
    from workflows.guards.signal_handlers import IgnoresUnknownSignals, signal_handler
    from workflows.options import SERVER_CALL_RETRY

CHANGES_PER_RUN = 500
SHIFTS_PER_RUN = 100
HEARTBEAT_TIMEOUT = timedelta(seconds=10)  # how soon another worker takes over idle work from one that was killed

Sealed = list[list[Any]] | None
"""The signals that the run before has held."""


class _Keeper(IgnoresUnknownSignals):
    _memo: str
    _changes: int = 0

    def _dump(self) -> dict[str, Any]:
        raise NotImplementedError

    def _is_run_full(self) -> bool:
        """Return whether to continue as new: the server ends a run of too many events, and ignored signals count."""
        return self._changes >= CHANGES_PER_RUN or workflow.info().is_continue_as_new_suggested()

    def _publish(self, details: str) -> None:
        workflow.upsert_memo({self._memo: self._dump()})
        set_details(details)

    def _continue(self) -> NoReturn:
        """Continue as new; signal handlers are synchronous and nothing awaits before this, so no signal is lost."""
        workflow.continue_as_new(args=[self._dump(), self.dump_sealed()], memo={self._memo: self._dump()})


@workflow.defn(name=LAYOUT_WORKFLOW)
class LayoutWorkflow(_Keeper):
    """Keeps how many packs a kind has, and gives it more; for as long as the kind is packed."""

    @workflow.init
    def __init__(self, wanted: int = 0, sealed: Sealed = None) -> None:
        """Load the number of packs that the kind is to have, 0 for what it has."""
        super().__init__(sealed)
        self._wanted = wanted

    @workflow.run
    @ignores_cancellation
    async def run(self, wanted: int = 0, sealed: Sealed = None) -> None:  # noqa: ARG002 — Temporal gives them to __init__ as well
        """Give the kind more packs, step by step, whenever some are wanted; for ever, in a series of runs."""
        self.open_sealed_signals()
        while True:
            layout = self._find_layout()
            set_details(describe_layout(layout.dump(), self._wanted))
            if self._is_run_full():
                workflow.continue_as_new(args=[self._wanted, self.dump_sealed()], memo={LAYOUT_MEMO: layout.dump()})

            if self._wanted > layout.packs:
                await self._grow(layout)
            else:
                packs = layout.packs
                await workflow.wait_condition(lambda packs=packs: self._wanted > packs or self._is_run_full())

    async def _grow(self, layout: Layout) -> None:
        """Take one step; the new number is published once no message is where only the old one leads."""
        to = find_next_count(layout.packs, self._wanted, options.GROWN_AT_ONCE)
        heading = to_heading(layout.kind, layout.lane, index=0, **layout.sizes)
        heading["task_timeout"] = workflow.info().task_timeout.total_seconds()
        await workflow.execute_activity(GROW_PACKS, {"pack": heading, "to": to}, **options.GROW_CALL)
        workflow.upsert_memo({LAYOUT_MEMO: replace(layout, packs=to).dump()})
        self._changes += 1

    def _find_layout(self) -> Layout:
        memo = workflow.memo_value(LAYOUT_MEMO, type_hint=dict[str, Any])
        return Layout.load(kind_of_packs(workflow.info().workflow_id), memo)

    @signal_handler(read_pack_count, GROW)
    def grow(self, packs: int) -> None:
        """Let the kind have so many packs; with fewer than it has nothing happens."""
        self._wanted = max(self._wanted, packs)


@workflow.defn(name=capacity.CAPACITY_WORKFLOW)
class CapacityWorkflow(_Keeper):
    """Keeps the most messages a second that each worker of a lane has done; workers report seldom."""

    _memo = capacity.CAPACITY_MEMO

    @workflow.init
    def __init__(self, wire: dict[str, Any] | None = None, sealed: Sealed = None) -> None:
        super().__init__(sealed)
        self._rates = capacity.read_measured(wire or {})

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any] | None = None, sealed: Sealed = None) -> None:  # noqa: ARG002 — Temporal gives them to __init__ as well
        """Publish each change of the rates; for ever."""
        self.open_sealed_signals()
        while True:
            changes = self._changes
            self._publish(describe_capacity(self._rates))
            if self._is_run_full():
                self._continue()
            await workflow.wait_condition(lambda changes=changes: self._changes > changes or self._is_run_full())

    def _dump(self) -> dict[str, Any]:
        return {worker: list(measured) for worker, measured in self._rates.items()}

    @signal_handler(capacity.read_measurement, capacity.MEASURED)
    def measured(self, given: capacity.Measurement) -> None:
        """Keep the highest rate of a worker process; if there are too many, drop the one silent for longest."""
        self._rates.pop(given.worker, None)
        self._rates[given.worker] = capacity.WorkerCapacity(round(given.per_second, 2), round(workflow.time(), 3))
        while len(self._rates) > capacity.WORKERS_KEPT:
            del self._rates[next(iter(self._rates))]
        self._changes += 1


@workflow.defn(name=gates.GATES_WORKFLOW)
class GatesWorkflow(_Keeper):
    """Keeps which gates are closed."""

    _memo = gates.GATES_MEMO

    @workflow.init
    def __init__(self, wire: dict[str, Any] | None = None, sealed: Sealed = None) -> None:
        super().__init__(sealed)
        self._closings = gates.read_closings(wire or {})

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any] | None = None, sealed: Sealed = None) -> None:  # noqa: ARG002 — Temporal gives them to __init__ as well
        """Open gates when it is time, and publish each change; for ever."""
        self.open_sealed_signals()
        while True:
            self._closings = gates.pick_closed(self._closings, workflow.time())
            self._publish(describe_gates(self._closings))
            if self._is_run_full():
                self._continue()
            await self._sleep_until_something_changes()

    async def _sleep_until_something_changes(self) -> None:
        changes = self._changes
        opens_at = min((closing.opens_at for closing in self._closings.values()), default=None)
        left = None if opens_at is None else timedelta(seconds=max(opens_at - workflow.time(), 0) + 0.01)
        try:
            await workflow.wait_condition(lambda: self._changes > changes or self._is_run_full(), timeout=left)
        except TimeoutError:
            self._changes += 1

    def _dump(self) -> dict[str, Any]:
        return {name: list(closing) for name, closing in self._closings.items()}

    @signal_handler(gates.read_close, gates.CLOSE)
    def close(self, given: gates.CloseRequest) -> None:
        """Close a gate; unless the signal says `replaces`, a later opening time that the gate has stays."""
        present = self._closings.get(given.gate)
        if present is None and len(self._closings) >= gates.GATES_MAX:
            self.ignore_signal(gates.CLOSE, f"{gates.GATES_MAX} gates are closed already")
            return
        if present is not None and not given.replaces and present.opens_at >= given.opens_at:
            return

        closed_at = workflow.time() if present is None else present.closed_at
        self._closings[given.gate] = gates.GateClosure(round(closed_at, 3), given.opens_at, given.reason)
        self._changes += 1

    @signal_handler(gates.read_open, gates.OPEN)
    def open(self, gate: str) -> None:
        """Open a gate; an open gate stays open."""
        if self._closings.pop(gate, None) is not None:
            self._changes += 1


@workflow.defn(name=idle.IDLE_WORKFLOW)
class IdleWorkflow(_Keeper):
    """Spends a lane's idle capacity; leads the lane, without an election, by being the only workflow with its id."""

    _memo = idle.IDLE_MEMO

    @workflow.init
    def __init__(self, wire: dict[str, Any] | None = None, sealed: Sealed = None) -> None:
        """Load the state of the previous run; without one, idle work is off and the limits are the defaults."""
        super().__init__(sealed)
        given = wire or {}
        self._is_on = bool(given.get("is_on", False))
        self._limits = idle.IdleLimits.load(given.get("limits", {}))
        self._pulled = idle.PullCounts.load(given.get("pulled", {}))
        self._shifts = 0
        self._is_changed = False

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any] | None = None, sealed: Sealed = None) -> None:  # noqa: ARG002 — Temporal gives them to __init__ as well
        """Spend idle capacity in shifts while switched on; for ever."""
        self.open_sealed_signals()
        while True:
            self._is_changed = False
            pulled = self._pulled
            state = "on" if self._is_on else "off"
            self._publish(
                f"**{state}** — pulled forward so far: {pulled.messages:,} messages, "
                f"{pulled.packs:,} packs, {pulled.mean_early_seconds:,.0f} s early on average"
            )
            await workflow.wait_condition(lambda: self._is_on or self._is_changed or self._is_run_full())
            if self._is_on and not self._is_run_full():
                await self._work_a_shift()
            if self._is_run_full():
                self._continue()

    async def _work_a_shift(self) -> None:
        """Run the activity until its shift is over, or until a signal changes something."""
        shift = workflow.start_activity(
            idle.PULL_AHEAD,
            {"limits": self._limits.dump()},
            result_type=dict[str, Any],
            start_to_close_timeout=timedelta(seconds=2 * idle.SHIFT_SECONDS),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=SERVER_CALL_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.wait_condition(lambda: self._is_changed or shift.done() or self._is_run_full())
        if not shift.done():
            shift.cancel()

        try:
            self._pulled += idle.PullCounts.load(await shift)
        except ActivityError as exc:
            if not is_cancelled_exception(exc):  # cancelled before a worker had started it
                raise

        self._shifts += 1

    def _is_run_full(self) -> bool:
        return self._shifts >= SHIFTS_PER_RUN or super()._is_run_full()

    def _dump(self) -> dict[str, Any]:
        return {"is_on": self._is_on, "limits": self._limits.dump(), "pulled": self._pulled.dump()}

    @signal_handler(read_nothing)
    def on(self, _: None = None) -> None:
        """Spend idle capacity from now on."""
        self._is_changed = self._is_changed or not self._is_on
        self._is_on = True

    @signal_handler(read_nothing)
    def off(self, _: None = None) -> None:
        """Spend none from now on."""
        self._is_changed = self._is_changed or self._is_on
        self._is_on = False

    @signal_handler(read_checked_object)
    def limits(self, wire: dict[str, Any]) -> None:
        """Change the limits that are named; invalid values change nothing."""
        try:
            self._limits = idle.IdleLimits.load({**self._limits.dump(), **wire})
        except ValueError as exc:
            self.ignore_signal("limits", str(exc))
        else:
            self._is_changed = True
