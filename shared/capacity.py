"""Measured capacity: how many messages a second the workers of a lane have done at most, kept where anybody can read it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

CAPACITY_WORKFLOW = "capacity"
"""Workflow type of the one that keeps it for a lane."""

CAPACITY_MEMO = "capacity"
"""The memo field in which it does; a memo can be read while no worker runs."""

MEASURED = "measured"
"""Its signal."""

WORKERS_KEPT = 200
"""Worker processes whose measurements are kept, those that told last."""


class Measured(NamedTuple):
    """What one worker process has done at most, and when it told (seconds since the epoch)."""

    per_second: float
    told_at: float


def capacity_workflow_id(task_queue: str) -> str:
    """Name the one workflow that keeps a lane's capacity; no kind holds a tilde, so it is no message."""
    return f"{task_queue}~capacity"


def read_measured(wire: Mapping[str, Any]) -> dict[str, Measured]:
    """Read what worker processes, by identity, have measured, as the memo has it."""
    return {worker: Measured(*told[: len(Measured._fields)]) for worker, told in wire.items()}
