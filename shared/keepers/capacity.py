"""Measured capacity: the most messages a second that a lane's workers have done, kept in a workflow's memo."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.messages.signal_reading import check_readable, number, require

CAPACITY_WORKFLOW = "capacity"  # workflow type that keeps the measured capacity of a lane
CAPACITY_MEMO = "capacity"  # the memo field that holds it; a memo can be read while no worker runs
MEASURED = "measured"  # signal that reports a measurement
WORKER_MAX = 500  # characters of a worker process's name
PER_SECOND_MAX = 1e9
WORKERS_KEPT = 200  # worker processes whose measurements are kept: those that reported last


class Measurement(NamedTuple):
    """Content of the signal: a worker process and how many messages a second it has done."""

    worker: str
    per_second: float


class WorkerCapacity(NamedTuple):
    """The highest rate of one worker process, and when it reported (seconds since the epoch)."""

    per_second: float
    reported_at: float


def capacity_workflow_id(task_queue: str) -> str:
    """Name the workflow that keeps a lane's capacity; no kind holds a tilde, so it is no message."""
    return f"{task_queue}~capacity"


def read_measurement(arguments: Sequence[Any]) -> Measurement:
    """Read a worker's measurement from the signal; raises ValueError with half a sentence."""
    given = [check_readable(argument) for argument in arguments]
    if len(given) != len(Measurement._fields):
        raise ValueError(f"it came with {len(given)} arguments; give the worker's name and a number")
    return Measurement(
        require("the worker", given[0], _is_worker, "its name"),
        require("the number", given[1], number(0, PER_SECOND_MAX), "messages a second"),
    )


def _is_worker(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= WORKER_MAX


def read_measured(wire: Mapping[str, Any]) -> dict[str, WorkerCapacity]:
    """Read the measurements in the memo, by identity of the worker process."""
    return {worker: WorkerCapacity(*values[: len(WorkerCapacity._fields)]) for worker, values in wire.items()}
