"""Named timeouts and retry policies of the workflows, with the reason for each number."""

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy

from shared.lanes import LANES

ONCE = RetryPolicy(maximum_attempts=1)
"""Handlers are retried by `decide`, as due times in the message's state, never by Temporal's retry policy.
So both encodings retry alike, attempts survive continue-as-new, and signals can steer a waiting retry."""

HANDLER_SLACK = timedelta(seconds=5)  # its activity cancels a late handler; this is for one that blocks its process
SETTLE_DELAY = timedelta(milliseconds=1)  # the shortest possible timer: only the workflow task that it causes matters
SERVER_CALL_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))
SERVER_CALL: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=10), "retry_policy": SERVER_CALL_RETRY}

BATCHES_MAX = {"short": 1, "medium": 4, "long": 8}
"""Most batches of one pack at the same time: on the short lane one, because a local activity holds the pack's workflow
task; on the other lanes more, so that messages that become due need not wait for a slow batch."""

BATCH_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=3
)
"""A batch whose worker is lost goes on from its last heartbeat.
A batch that is lost three times may be what kills its workers: then the pack tries each of its messages alone."""

CONDENSED_FROM = timedelta(seconds=10)
"""A pack that sleeps longer condenses its entries; with a shorter sleep, opening them would be a tenth of its work. One
that continues as new when it wakes always does: what it has condensed is what it passes on."""

FORWARDED_AT_ONCE = 5  # signals to other packs that one local activity sends: up to 1 MB in all

CONTINUE_AS_NEW_LEAST = 20  # cycles that every run may have before it continues as new, however small the pack is


def batch_timeout(lane: str) -> timedelta:
    """Return the time after which Temporal itself gives up a batch on a lane."""
    return LANES[lane].batch_start + handler_timeout(lane)


def handler_timeout(lane: str) -> timedelta:
    """Return the time after which Temporal itself gives up a handler call on a lane."""
    return LANES[lane].handler_timeout_max + HANDLER_SLACK
