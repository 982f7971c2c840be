"""Named timeouts and retry policies of the workflows, with the reason for each number."""

from datetime import timedelta

from temporalio.common import RetryPolicy

from shared.lanes import LANES

ONCE = RetryPolicy(maximum_attempts=1)
"""Handlers are retried by the decision, as due times in the message's state, never by Temporal's retry policy:
so both encodings retry alike, attempts survive continue-as-new, and a waiting retry can be steered by signals."""

HANDLER_SLACK = timedelta(seconds=5)
"""The dispatching activity cuts a handler off itself; Temporal's own timeout is only for one that blocks its process."""

MEASURES_TIMEOUT = timedelta(seconds=10)
"""One small call to the server from inside a workflow."""

SETTLE_DELAY = timedelta(milliseconds=1)
"""The shortest timer there is: it is the task that it brings which counts."""

MEASURES_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))


def handler_timeout(lane: str) -> timedelta:
    """Say after how long Temporal itself gives a handler call on a lane up."""
    return LANES[lane].handler_timeout_max + HANDLER_SLACK
