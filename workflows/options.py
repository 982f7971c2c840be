"""Named timeouts and retry policies of the workflows, with the reason for each number."""

from datetime import timedelta
from typing import Any

from temporalio.common import RetryPolicy

from shared.lanes import LANES

ONCE = RetryPolicy(maximum_attempts=1)
"""Handlers are retried by `decide`, as due times in the message's state, never by Temporal's retry policy.
So both encodings retry alike, attempts survive continue-as-new, and signals can steer a waiting retry."""

HANDLER_SLACK = timedelta(seconds=5)  # its activity cancels a late handler; this is for one that blocks its process

SERVER_CALL_TIMEOUT = timedelta(seconds=10)
SERVER_CALL_RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=30))

SERVER_CALL: dict[str, Any] = {
    "start_to_close_timeout": SERVER_CALL_TIMEOUT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3),
}
"""For a call that the server may refuse for ever, and that nothing waits for."""

FORWARD_CALL: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=2),  # hundreds of signals, also to a server that is slow
    "heartbeat_timeout": SERVER_CALL_TIMEOUT,
    "retry_policy": SERVER_CALL_RETRY,
}
"""For what must reach other workflows, however long the server is away."""

BATCH_RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=1), maximum_interval=timedelta(minutes=1), maximum_attempts=3
)
"""A batch that is lost three times may be what kills its workers: then the pack tries each of its messages alone."""

BATCH_SLACK = timedelta(seconds=20)
"""A batch answers seconds after its calls have begun, or, in a process that drains, after they have ended."""

PROCESS_TIMEOUT = timedelta(seconds=15)
"""How long a worker process may leave a question about its calls in flight before it counts as dead."""

ASKED_LATE_MAX = 3
"""How often a pack may ask in vain for calls whose time is over. A run that ends takes its question back before that
times out: so of a pack whose runs are short, a process that has died would never count as dead."""

CALLS_IN_FLIGHT_MAX = 500
"""Most batches of one pack with calls that still work. The server allows a workflow 2,000 activities at once."""

CLOSED_FROM = timedelta(seconds=10)
"""A pack that sleeps longer closes its entries; with a shorter sleep, opening them would be a tenth of its work. One
that continues as new when it wakes always does: what it has closed is what it passes on."""

GROWN_AT_ONCE = 64
"""Most packs that a kind gets in one step. Only after it are they known, so that a smaller step helps sooner."""

GROW_CALL: dict[str, Any] = {
    "start_to_close_timeout": timedelta(days=2),  # a message moves when its handler has ended
    "heartbeat_timeout": timedelta(seconds=30),
    "retry_policy": SERVER_CALL_RETRY,
}
"""For the splitting of packs, which must come to its end, however long the server is away."""

CONTINUE_AS_NEW_MIN = 20  # cycles that every run may have before it continues as new, however small the pack is

LAST_ANSWERS = timedelta(milliseconds=1)
"""Shortest timer; a run with calls in flight ends in the task after it."""

HISTORY_BYTES_MAX = 1_000_000  # continue as new beyond this size, whatever filled the history


def batch_timeout(lane: str) -> timedelta:
    """Return the time after which Temporal itself gives up a batch on a lane."""
    return LANES[lane].batch_start + handler_timeout(lane) + BATCH_SLACK


def handler_timeout(lane: str) -> timedelta:
    """Return the time after which Temporal itself gives up a handler call on a lane."""
    return LANES[lane].handler_timeout_max + HANDLER_SLACK
