"""Lanes: the execution-length buckets, and the task queue each one owns."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Lane:
    """One execution-length bucket: its slots and timeouts; the mechanism is the same on every lane."""

    name: str
    handler_timeout: timedelta  # of handlers that declare none
    handler_timeout_max: timedelta  # the most that a handler may declare
    heartbeat_timeout: timedelta  # after it the calls of a dead worker run again; also the longest a handler may block
    batch_start: timedelta  # messages of a batch whose handler has not started by then are handed back


LANES: dict[str, Lane] = {
    "short": Lane(
        "short",
        handler_timeout=timedelta(seconds=10),
        handler_timeout_max=timedelta(seconds=30),
        heartbeat_timeout=timedelta(seconds=10),
        batch_start=timedelta(seconds=10),
    ),
    "medium": Lane(
        "medium",
        handler_timeout=timedelta(minutes=5),
        handler_timeout_max=timedelta(minutes=30),
        heartbeat_timeout=timedelta(seconds=10),
        batch_start=timedelta(seconds=20),
    ),
    "long": Lane(
        "long",
        handler_timeout=timedelta(hours=2),
        handler_timeout_max=timedelta(hours=24),
        heartbeat_timeout=timedelta(seconds=60),
        batch_start=timedelta(minutes=1),
    ),
}


def task_queue(prefix: str, lane: str) -> str:
    """Name the task queue of a lane; workflow tasks and activity tasks of the lane share it."""
    return f"{prefix}-{lane}"


def calls_queue(prefix: str, process: str) -> str:
    """Name the task queue of one worker process, on which packs ask for the calls that it has in flight."""
    return f"{prefix}-calls-{process}"


def prefix_of(queue: str) -> str:
    """Give back the prefix that `task_queue` was called with."""
    return queue.rpartition("-")[0]


def lane_of_queue(queue: str) -> str:
    """Give back the lane that `task_queue` was called with."""
    return queue.rpartition("-")[2]
