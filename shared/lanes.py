"""Lanes: the execution-length buckets, and the task queue each one owns."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Lane:
    """One execution-length bucket.

    A lane with `heartbeat_timeout` runs handlers as ordinary activities; one without runs them as local activities,
    which cost 6 events and 3 database transactions a cycle instead of 11 and 7.
    """

    name: str
    handler_timeout: timedelta  # of handlers that declare none
    handler_timeout_max: timedelta  # the most that a handler may declare
    heartbeat_timeout: timedelta | None
    batch_start: timedelta  # messages of a batch whose handler has not started by then are handed back


# On the short lane `handler_timeout_max` plus `batch_start` stays below 80 % of the workflow-task timeout (60 s):
# from there on a local activity would cost workflow-task heartbeats.
LANES: dict[str, Lane] = {
    "short": Lane("short", timedelta(seconds=10), timedelta(seconds=30), None, timedelta(seconds=10)),
    "medium": Lane("medium", timedelta(minutes=5), timedelta(minutes=30), timedelta(seconds=30), timedelta(minutes=1)),
    "long": Lane("long", timedelta(hours=2), timedelta(hours=24), timedelta(seconds=60), timedelta(minutes=10)),
}


def task_queue(prefix: str, lane: str) -> str:
    """Name the task queue of a lane; workflow tasks and activity tasks of the lane share it."""
    return f"{prefix}-{lane}"


def prefix_of(queue: str) -> str:
    """Give back the prefix that `task_queue` was called with."""
    return queue.rpartition("-")[0]


def lane_of_queue(queue: str) -> str:
    """Give back the lane that `task_queue` was called with."""
    return queue.rpartition("-")[2]
