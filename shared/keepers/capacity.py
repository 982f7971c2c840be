"""Measured capacity: how many messages a second the workers of a lane have done at most, kept where anybody can read it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.messages.signal_reading import check_readable, is_number, require

CAPACITY_WORKFLOW = "capacity"
"""Workflow type of the one that keeps it for a lane."""

CAPACITY_MEMO = "capacity"
"""The memo field in which it does; a memo can be read while no worker runs."""

MEASURED = "measured"
"""Its signal."""

WORKER_MAX = 500
"""Characters of the name that a worker process has."""

PER_SECOND_MAX = 1e9

WORKERS_KEPT = 200
"""Worker processes whose measurements are kept, those that told last."""


class Measurement(NamedTuple):
    """What the signal says: which worker process has done how many messages a second."""

    worker: str
    per_second: float


class Measured(NamedTuple):
    """What one worker process has done at most, and when it told (seconds since the epoch)."""

    per_second: float
    told_at: float


def capacity_workflow_id(task_queue: str) -> str:
    """Name the one workflow that keeps a lane's capacity; no kind holds a tilde, so it is no message."""
    return f"{task_queue}~capacity"


def read_measurement(arguments: Sequence[Any]) -> Measurement:
    """Read what a worker process has measured; raises ValueError with half a sentence."""
    given = [check_readable(argument) for argument in arguments]
    if len(given) != len(Measurement._fields):
        raise ValueError(f"it came with {len(given)} arguments; give the worker's name and a number")
    return Measurement(
        require("the worker", given[0], _is_worker, "its name"),
        require("the number", given[1], _is_rate, "messages a second"),
    )


def _is_worker(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= WORKER_MAX


def _is_rate(value: Any) -> bool:
    return is_number(value) and 0 <= value <= PER_SECOND_MAX


def read_measured(wire: Mapping[str, Any]) -> dict[str, Measured]:
    """Read what worker processes, by identity, have measured, as the memo has it."""
    return {worker: Measured(*told[: len(Measured._fields)]) for worker, told in wire.items()}
