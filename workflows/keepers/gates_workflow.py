"""The gates' workflow, a single one: it keeps which gates are closed, also while no worker runs."""

from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from shared.keepers.gates import (
        CLOSE,
        GATES_MAX,
        GATES_MEMO,
        GATES_WORKFLOW,
        OPEN,
        CloseRequest,
        GateClosure,
        pick_closed,
        read_close,
        read_closings,
        read_open,
    )
    from workflows.description import describe_gates
    from workflows.replay.cancellation import ignores_cancellation, set_details
    from workflows.replay.signal_handlers import IgnoresUnknownSignals, signal_handler

CHANGES_PER_RUN = 500


@workflow.defn(name=GATES_WORKFLOW)
class GatesWorkflow(IgnoresUnknownSignals):
    """Keeps the closed gates, and publishes them in its memo, where reading costs no workflow task."""

    @workflow.init
    def __init__(self, wire: dict[str, Any] | None = None) -> None:
        """Load the state of the previous run; the first run starts with all gates open."""
        self._closings = read_closings(wire or {})
        self._changes = 0
        self._is_changed = False

    @workflow.run
    @ignores_cancellation
    async def run(self, wire: dict[str, Any] | None = None) -> None:  # noqa: ARG002 — Temporal gives it to __init__ as well
        """Open gates when it is time, and publish each change; for ever."""
        while True:
            self._closings = pick_closed(self._closings, workflow.time())
            self._is_changed = False
            self._publish()
            if self._changes >= CHANGES_PER_RUN or workflow.info().is_continue_as_new_suggested():
                # signal handlers are synchronous and nothing awaits before this, so no signal is lost
                workflow.continue_as_new(self._dump(), memo={GATES_MEMO: self._dump()})
            await self._sleep_until_something_changes()

    async def _sleep_until_something_changes(self) -> None:
        opens_at = min((closing.opens_at for closing in self._closings.values()), default=None)
        left = None if opens_at is None else timedelta(seconds=max(opens_at - workflow.time(), 0) + 0.01)
        try:
            await workflow.wait_condition(lambda: self._is_changed, timeout=left)
        except TimeoutError:
            self._changes += 1

    def _dump(self) -> dict[str, Any]:
        return {name: list(closing) for name, closing in self._closings.items()}

    def _publish(self) -> None:
        workflow.upsert_memo({GATES_MEMO: self._dump()})
        set_details(describe_gates(self._closings))

    @signal_handler(read_close, CLOSE)
    def close(self, given: CloseRequest) -> None:
        """Close a gate; unless the signal says `replaces`, a later opening time that the gate has stays."""
        present = self._closings.get(given.gate)
        closed_at = workflow.time()
        if present is None and len(self._closings) >= GATES_MAX:
            self.ignore_signal(CLOSE, f"{GATES_MAX} gates are closed already")
            return
        if present is not None:
            if not given.replaces and present.opens_at >= given.opens_at:
                return
            closed_at = present.closed_at
        self._closings[given.gate] = GateClosure(round(closed_at, 3), given.opens_at, given.reason)
        self._note_change()

    @signal_handler(read_open, OPEN)
    def open(self, gate: str) -> None:
        """Open a gate; an open gate stays open."""
        if self._closings.pop(gate, None) is not None:
            self._note_change()

    def _note_change(self) -> None:
        self._changes += 1
        self._is_changed = True
