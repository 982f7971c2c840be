"""Named timeouts and retry policies of the workflows, with the reason for each number."""

from datetime import timedelta

from temporalio.common import RetryPolicy

from shared.lanes import LANES

ONCE = RetryPolicy(maximum_attempts=1)
"""Handlers are retried by the decision, as due times in the message's state, never by Temporal's retry policy:
so both encodings retry alike, attempts survive continue-as-new, and a waiting retry can be steered by signals."""

HANDLER_SLACK = timedelta(seconds=5)
"""The dispatching activity cuts a handler off itself; Temporal's own timeout is only for one that blocks its process."""

SERVER_CALL_TIMEOUT = timedelta(seconds=10)
"""One small call to the server from inside a workflow."""

SETTLE_DELAY = timedelta(milliseconds=1)
"""The shortest timer there is: it is the task that it brings which counts."""

SERVER_CALL_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


BATCHES_MAX = {"short": 1, "medium": 4, "long": 8}
"""Batches of one pack under way at once: of local activities one, because they hold the pack's workflow task; on the
other lanes more, so that those who fall due meanwhile don't wait for one that takes its time."""

BATCH_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=3
)
"""A batch whose worker is lost is retried where it was, by its heartbeats. One that is lost three times may be what kills
its workers: then the pack tries each of its messages alone."""

FORWARDED_AT_ONCE = 5
"""Signals to other packs in one local activity: up to 1 MB of them."""

CONTINUE_AS_NEW_SHARE = 0.25
"""Continue as new once so many cycles for each message of the pack are in the history: a pack that is not cached decides
them all over again when it wakes, and a new run costs the writing of its whole state."""

CONTINUE_AS_NEW_LEAST = 20
"""And not before so many, however small the pack is."""


def batch_timeout(lane: str) -> timedelta:
    """Say after how long Temporal itself gives a batch on a lane up."""
    return LANES[lane].batch_start + handler_timeout(lane)


def handler_timeout(lane: str) -> timedelta:
    """Say after how long Temporal itself gives a handler call on a lane up."""
    return LANES[lane].handler_timeout_max + HANDLER_SLACK
