"""What a worker reports of each cycle: metrics, a span if its message is sampled, an event for the outcomes topic."""

import asyncio
import contextlib
import logging
from collections import deque
from datetime import timedelta
from itertools import islice
from typing import Self

from shared.kafka.connection import kafka_options
from shared.kafka.safe_producer import BrokerError, OutgoingRecord, SafeProducer
from shared.messages.decision import Spread
from shared.messages.json_value import encode_to_keep
from shared.messages.message import HandlerCall, Outcome
from shared.messages.outcome_event import to_event
from shared.messages.placement import workflow_id
from shared.settings import Settings
from shared.telemetry.metrics import CYCLES, GATED, HANDLER_DURATION, LATENESS, PARKED
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span

logger = logging.getLogger(__name__)

FAILURES = ("failed", "reject")  # outcomes that a span marks as errors; all others are normal

PATIENCE = timedelta(seconds=3)
"""How long an outcome waits for its event to be safe; it does not wait while the broker is known to be in trouble. This
is shorter than the time that Temporal leaves a handler beyond its own timeout."""

HELD_MAX = 100_000  # events that one process holds while the broker is in trouble; then the oldest are dropped
SENT_AT_ONCE = 1000
RETRY_AFTER = timedelta(seconds=1)


def is_parking(call: HandlerCall, outcome: Outcome) -> bool:
    """Return whether an outcome parks its message, unless a signal that came meanwhile prevents it."""
    return outcome.verdict == "reject" or (outcome.verdict == "failed" and call.attempt >= outcome.max_attempts)


def record_cycle(telemetry: Telemetry, call: HandlerCall, outcome: Outcome, started_at: float, ended_at: float) -> None:
    """Record a cycle's outcome, its duration, and how late it began; times are seconds since the epoch."""
    of_kind = {"kind": call.kind, "lane": call.lane}
    if outcome.verdict == "gated":
        record_gated(telemetry, call.kind, call.lane, 1)
        return

    telemetry.record(CYCLES, 1, of_kind | {"outcome": outcome.word})
    telemetry.record(HANDLER_DURATION, ended_at - started_at, of_kind)
    # a requested run, or idle capacity, has made the message due at that moment
    telemetry.record(LATENESS, max(started_at - call.due_at, 0.0), of_kind)
    if is_parking(call, outcome):
        telemetry.record(PARKED, 1, of_kind)


def record_gated(telemetry: Telemetry, kind: str, lane: str, count: int) -> None:
    """Record that messages wait at a closed gate, without a cycle."""
    telemetry.record(GATED, count, {"kind": kind, "lane": lane})


def begin_cycle(telemetry: Telemetry, call: HandlerCall, started_at: float) -> Span:
    """Begin a trace for a handler's call, linked to the message's record and to its previous cycle."""
    if not telemetry.ratio:
        return NO_SPAN

    name = workflow_id(call.kind, call.id)
    if not telemetry.samples(name.encode()):
        return NO_SPAN

    attributes: Attributes = {
        "kind": call.kind,
        "lane": call.lane,
        "workflow_id": name,
        "correlation_id": call.correlation_id,
        "version": call.version,
        "attempt": call.attempt,
        "tenant": call.tenant,
        "lateness_seconds": round(max(started_at - call.due_at, 0.0), 3),
    }
    links = {"record": call.trace, "previous cycle": {"traceparent": call.traced}}
    return telemetry.begin_span(f"cycle {call.kind}", attributes, links)


def end_cycle(span: Span, outcome: Outcome) -> Outcome:
    """End the span with the call's outcome, and note in the outcome what the next cycle is linked to."""
    if span is NO_SPAN:
        return outcome
    failure = outcome.verdict if outcome.verdict in FAILURES else ""
    span.end({"outcome": outcome.word}, failure)
    return outcome._replace(traced=span.traceparent)


class OutcomeEvents:
    """Sends an event for each cycle, in order; use it for the length of an `async with` block.

    An event is safe at the broker before Temporal learns of its outcome, so a killed worker reports an outcome twice
    rather than never. While the broker is in trouble outcomes do not wait: events are held in memory and sent later.
    """

    def __init__(self, settings: Settings) -> None:
        """Read the Kafka settings; raises InvalidSetting and Misconfigured if they can't work."""
        self._topic = settings.outcomes_topic
        options = kafka_options(settings) | {"compression_type": "lz4"}
        self._outlet = SafeProducer(options, PATIENCE.total_seconds())
        self._held: deque[tuple[OutgoingRecord, asyncio.Future[None]]] = deque()
        self._has_more = asyncio.Event()
        self._is_troubled = False
        self._given_up = 0
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start sending; the broker is not contacted before there is an event."""
        self._sending = asyncio.create_task(self._send_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send the held events within the patience; the rest is dropped, with a line in the log."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while self._held:
                    await asyncio.wait([self._held[-1][1]])
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

        self._given_up += len(self._held)
        self._note_given_up()
        await self._outlet.stop()

    async def report(
        self, call: HandlerCall, outcome: Outcome, started_at: float, spread: Spread | None = None
    ) -> None:
        """Send the event of a cycle that began at `started_at` (seconds since the epoch); broker faults never raise."""
        event = to_event(call, outcome, started_at, spread)
        headers = (("traceparent", outcome.traced.encode()),) if outcome.traced else ()
        record = OutgoingRecord(workflow_id(call.kind, call.id).encode(), encode_to_keep(event), headers)
        sent = asyncio.get_running_loop().create_future()
        self._held.append((record, sent))

        if len(self._held) > HELD_MAX:
            self._held.popleft()[1].cancel()
            self._given_up += 1

        self._has_more.set()
        if not self._is_troubled:
            await asyncio.wait([sent], timeout=PATIENCE.total_seconds())

    async def _send_on(self) -> None:
        while True:
            await self._has_more.wait()
            if not self._held:
                self._has_more.clear()
                continue

            batch = list(islice(self._held, SENT_AT_ONCE))
            try:
                await self._outlet.send_all(self._topic, [record for record, _ in batch])
            except BrokerError as exc:
                self._is_troubled = True
                logger.warning("outcomes not told yet", extra={"action": "outcomes_held", "reason": str(exc)})
                await asyncio.sleep(RETRY_AFTER.total_seconds())
                continue

            self._is_troubled = False
            self._note_given_up()

            for _, sent in batch:
                if not sent.cancelled():
                    sent.set_result(None)
                    self._held.popleft()

    def _note_given_up(self) -> None:
        if self._given_up:
            logger.error("outcomes never told", extra={"action": "outcomes_given_up", "count": self._given_up})
            self._given_up = 0
