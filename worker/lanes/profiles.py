"""How a worker serves a lane: slots, pollers and cache, each number with its reason."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Profile:
    """The numbers of one lane in one process.

    `workflow_slots`: workflow tasks at once; they only compute, so a few more than cores keep those busy.
    `activity_slots`: handlers of messages, and batches of packs, at work at once; each holds a coroutine, not a thread.
    `cached_workflows`: at least those that wait for a handler or batch, so that the result finds a cached workflow.
    Among millions of messages asleep the next one to wake is hardly ever a cached one, but so many packs hold a million
    messages. What all of them hold is limited as well, by the setting `cached_bytes`.
    `workflow_pollers`: requests for workflow tasks at once. On a busy server each takes half a second, so three of them
    fetch some six tasks a second; what waits longer than `sticky_timeout` in a worker's sticky queue is moved.
    `nonsticky_to_sticky_poll_ratio`: the share of them that asks for workflows that no worker has cached: new ones,
    runs that begin or were evicted, and after a kill all. While more is due than can run, the SDK's core gives the
    others precedence.
    """

    workflow_slots: int
    activity_slots: int
    cached_workflows: int
    workflow_pollers: int
    activity_pollers: int
    nonsticky_to_sticky_poll_ratio: float = 0.2
    sticky_timeout: timedelta = timedelta(seconds=3)


PROFILES: dict[str, Profile] = {
    "short": Profile(
        workflow_slots=32,
        activity_slots=500,
        cached_workflows=1_000,
        workflow_pollers=20,  # a task that meets a waiting poll is never written to the database
        activity_pollers=5,
        nonsticky_to_sticky_poll_ratio=0.6,  # among millions asleep, hardly one that wakes is cached
    ),
    "medium": Profile(
        workflow_slots=16,
        activity_slots=500,
        cached_workflows=1_000,
        workflow_pollers=10,  # 4 for the lane's queue, 6 for what is cached
        activity_pollers=5,
        nonsticky_to_sticky_poll_ratio=0.4,
    ),
    "long": Profile(
        workflow_slots=8,
        activity_slots=500,
        cached_workflows=200,
        workflow_pollers=5,
        activity_pollers=3,
        nonsticky_to_sticky_poll_ratio=0.4,
    ),
}
