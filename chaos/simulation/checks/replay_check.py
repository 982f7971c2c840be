"""Replay checks: a replay of a run's history, as on another worker, must give the same state."""

# The checks compare private states.
# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

import random
from typing import Any

from chaos.simulation.ledger.ledger import Ledger
from chaos.simulation.replica.activation import WorkflowTaskFailure
from chaos.simulation.replica.history import COMMANDED, What
from chaos.simulation.replica.replica import NotDeterministic, Replica
from chaos.simulation.server.run import Run
from shared.messages.placement import PACK_WORKFLOW
from shared.packs.entry import ID, VERSION

REPLAYED_EVENTS = 5.0
"""Average number of events replayed per task; a closed run is always replayed."""


class ReplayCheck:
    """Checks completed tasks for the ledger, and replays some of the runs."""

    def __init__(self, rng: random.Random, ledger: Ledger) -> None:
        self._rng = rng
        self._ledger = ledger

    def watch(self, run: Run, replica: Replica) -> None:
        """Check a run after a completed task."""
        self._ledger.watch(run, replica)
        if run.is_open and self._rng.random() > REPLAYED_EVENTS / len(run.history):
            return

        replayed = Replica(run)
        try:
            replayed.feed(run.history)
        except (NotDeterministic, WorkflowTaskFailure) as exc:
            self._ledger.violate(f"{run.workflow_id} ({run.run_id}) does not replay: {exc}")
            return

        has_news = run.history[-1].what not in COMMANDED | {What.TASK_COMPLETED}
        if run.workflow_type == PACK_WORKFLOW and run.is_open and not has_news:
            before = _summarize(replica)
            after = _summarize(replayed)
            if before != after:
                self._ledger.violate(f"{run.workflow_id} ({run.run_id}) replays to {after}, it was {before}")


def _summarize(replica: Replica) -> dict[str, Any]:
    pack = replica.object._pack
    return {
        "alive": {entry[ID]: entry[VERSION] for entry in pack.entries.read()},
        "ended": sorted(pack.limits.ended),
        "running": sorted(pack.in_flight.messages),
    }
