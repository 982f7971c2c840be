"""The worker of a frontier: offers each URL whose message wakes to the buffer, and lets the message sleep on.

It serves a task queue of its own, so that a message that wakes is offered in the process that holds the buffer. Idle
capacity runs nothing ahead of time there, because nobody starts the leader that would.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from datetime import UTC, datetime, timedelta

from temporalio.client import Client
from temporalio.service import RPCError

from activities.api.context import Context
from activities.api.handler import Handler, handler
from activities.api.outcome import Again, Message, Reject
from activities.idle.capacity import Capacity
from activities.registry import Registry
from shared.errors import InvalidEnvelope, RetryLater
from shared.lanes import task_queue
from shared.messages.encoding import Pack
from shared.settings import Settings
from shared.temporal.connect import describe_queue
from starter.extras.frontier.buffer.due_buffer import DueBuffer
from starter.extras.frontier.crawl_url import CrawlUrl
from starter.extras.frontier.url_store import LANE, NEVER, SOON_SECONDS
from worker.run import WorkerPlan

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
WATCH_SECONDS = 2.0
BEGINNING = timedelta(seconds=4)
"""How long after its begin a worker may be unknown: two of its heartbeats."""
REFUSED_A_SECOND = 100.0
"""Offers without room that cost little. With more of them, each URL waits longer for its next one; their rate then
grows as the square root of the number that wait: a million wake 600 times a second, each every half an hour."""
WINDOW_SECONDS = 60.0
LONGEST_SECONDS = 6 * 3600.0
TOLERANCE_SHARE = 0.2


class RefusalRate:
    """Counts refused offers of the last minute; moments are seconds since the epoch."""

    def __init__(self, offer_seconds: float) -> None:
        self._offer_seconds = offer_seconds
        self._seconds: deque[tuple[int, int]] = deque()
        self._count = 0

    def note(self, now: float) -> float:
        """Count one, and give how long a URL that finds no room is to wait."""
        second = int(now)
        known = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, known + 1))
        self._count += 1
        while self._seconds[0][0] <= now - WINDOW_SECONDS:
            self._count -= self._seconds.popleft()[1]

        longer = max(1.0, self._count / WINDOW_SECONDS / REFUSED_A_SECOND)
        jitter = random.uniform(0.75, 1.25)  # noqa: S311 — jitter needs no cryptography
        return min(self._offer_seconds * longer, LONGEST_SECONDS) * jitter


def make_handler(kind: str, pack: Pack, buffer: DueBuffer, offer_seconds: float) -> Handler:
    """Make the handler of a kind for the process that holds the buffer."""
    refusals = RefusalRate(offer_seconds)

    @handler(kind, lane=LANE, encoding=pack)
    async def offer(message: Message, ctx: Context) -> Again | Reject:  # noqa: ARG001 — every handler gets a context
        """Offer a URL that may be fetched to the crawlers of `dormice frontier`."""
        try:
            url = CrawlUrl.of_message(message.id, message.payload)
        except InvalidEnvelope as exc:
            return Reject(str(exc))

        now = time.time()
        last = now + NEVER.total_seconds()

        if url.is_completed or url.refetch_at > now + SOON_SECONDS:  # it was due when its pack knew an older date
            moment_at = last if url.is_completed else min(url.refetch_at, last)
            moment = datetime.fromtimestamp(moment_at, UTC)
            return Again(at=moment, earliest=moment, tolerance=timedelta(0))

        is_taken = buffer.offer(message.id, url, now)
        seconds = offer_seconds if is_taken else refusals.note(now)
        wait = timedelta(seconds=seconds)
        reason = "" if is_taken else "no room"
        return Again(after=wait, earliest=wait, tolerance=TOLERANCE_SHARE * wait, reason=reason)

    return offer


async def wait_for_others(client: Client, settings: Settings) -> None:
    """Wait until no other worker process serves the task queue; one that was killed counts for some seconds."""
    queue = task_queue(settings.task_queue_prefix, LANE)
    is_logged = False

    while True:
        with contextlib.suppress(RPCError):
            others = await Capacity(client, queue).find_identities() | await _find_beginners(client, queue)
            if not others:
                return
            if not is_logged:
                is_logged = True
                about = {"action": "frontier_waits", "others": ", ".join(sorted(others))}
                logger.warning("another process serves this kind, waiting for its end", extra=about)
        await asyncio.sleep(LOOK_SECONDS)


async def _find_beginners(client: Client, queue: str) -> set[str]:
    """Name the processes that have polled a moment ago: one that has just begun is not known otherwise yet."""
    since = datetime.now(UTC) - BEGINNING
    pollers = (await describe_queue(client, queue)).pollers
    return {poller.identity for poller in pollers if poller.last_access_time.ToDatetime(UTC) >= since}


async def watch_for_others(client: Client, settings: Settings) -> None:
    """Raise RetryLater when another process serves the task queue, too, unless this one's name comes first.

    Two that begin at the same moment don't see each other, nor does one see anybody that begins just after the server,
    which keeps workers in memory.
    """
    capacity = Capacity(client, task_queue(settings.task_queue_prefix, LANE))
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        with contextlib.suppress(RPCError):
            if (first := min(await capacity.find_identities(), default=client.identity)) < client.identity:
                raise RetryLater(f"{first} serves this kind, too; start this one again, and it waits")


def make_plan(settings: Settings, registry: Registry, drain: timedelta) -> WorkerPlan:
    """Say what the worker is to do."""
    return WorkerPlan(settings=settings, registry=registry, lanes=(LANE,), drain=drain)
