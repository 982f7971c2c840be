"""The delivery loop: turns records into messages or dead letters, retries failures, and then acknowledges."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from shared.errors import RetryLater
from shared.telemetry.logs import LogThrottle
from shared.telemetry.spans import NO_SPAN
from shared.temporal.backoff import backoff_seconds
from starter.bridge.offsets import Assignment
from starter.bridge.pending_record import PendingRecord, RecordSpans, describe_held
from starter.bridge.record_scheduler import RecordScheduler
from starter.bridge.window import STEP, Window
from starter.records.formats import Formats
from starter.records.record import Record
from starter.starting.bulk import BulkStarter, Request
from starter.starting.delivery import Delivery
from starter.starting.receipts import ChunkReceipts, Receipt, StartOutcome

logger = logging.getLogger(__name__)

REFUSED = "Refused"
"""Error class of a valid record that the server, or a full pack, refuses."""

DEAD = "dead"
"""Outcome of a record that is written as a dead letter."""

WriteDeadLetter = Callable[[Record, str, str], Awaitable[None]]
"""Writes a dead letter (record, error class, message); raises RetryLater while the broker does not accept it."""


@dataclass(eq=False)
class RecordOutcomes:
    """Ends records whose message or dead letter is stored, and those that ask for nothing."""

    scheduler: RecordScheduler
    assignment: Assignment
    formats: Formats
    counts: Counter[str] = field(default_factory=Counter[str], init=False)
    """What became of records, by outcome; a failed one counts at each attempt."""

    def acknowledge(self, records: Sequence[PendingRecord], outcome: str, error_class: str = "") -> None:
        """Let the offsets of records be committed, and the next records of their messages begin."""
        is_logged = logger.isEnabledFor(logging.DEBUG)
        for pending in records:
            if pending.span is not NO_SPAN:
                pending.span.end({"outcome": outcome, "attempts": pending.attempts + 1}, error_class)
            if is_logged:
                extra = {**describe_held(pending, self.formats), "outcome": outcome, "error_class": error_class}
                logger.debug("record settled", extra={"action": "record_settled", **extra})
            self.scheduler.finished(pending)
            self.assignment.acknowledged(pending.partition, pending.epoch, pending.record.offset)


@dataclass(eq=False)
class DeliveryLoop:
    """Delivers the records that the scheduler gives out, and ends each when its message or dead letter is stored."""

    scheduler: RecordScheduler
    outcomes: RecordOutcomes
    formats: Formats
    starter: BulkStarter
    write_dead_letter: WriteDeadLetter
    spans: RecordSpans
    _deliveries: asyncio.Queue[list[PendingRecord] | None] = field(default_factory=asyncio.Queue, init=False)
    _background: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    _is_closed: bool = field(default=False, init=False)
    _is_pumping: bool = field(default=False, init=False)
    _log_throttle: LogThrottle = field(default_factory=LogThrottle, init=False)
    _window: Window = field(default_factory=Window, init=False)

    async def run(self) -> None:
        """Deliver until `finish`; raises Misconfigured when the server refuses this client as such."""
        async for receipts in self.starter.start_groups(self._requests()):
            if isinstance(receipts, ChunkReceipts) and not receipts.others:
                self._handle_started(receipts.tags)
            else:
                for receipt in receipts:
                    self._handle_receipt(receipt)

    def pump(self) -> None:
        """Begin what may begin now."""
        if self._is_closed:
            return

        if (limits := self._window.find_change()) is not None:
            self.scheduler.resize(limits)

        taken = self.scheduler.take()
        if alive := [pending for pending in taken if pending.key is not None]:
            self._deliveries.put_nowait(alive)

        if idle := [pending for pending in taken if pending.key is None and pending.dead is None]:
            self.outcomes.counts[StartOutcome.IGNORED] += len(idle)
            self._acknowledge(idle, StartOutcome.IGNORED)

        for pending in taken:
            if pending.dead is not None:
                self._run_in_background(self._write_dead_letter(pending, pending.dead.error_class, str(pending.dead)))

    def close(self) -> None:
        """Begin nothing more."""
        self._is_closed = True

    async def finish(self) -> None:
        """End `run` and all waiting retries; the next bridge repeats what is still under way."""
        self.close()
        self._deliveries.put_nowait(None)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _requests(self) -> AsyncIterator[list[tuple[PendingRecord, Request]]]:
        while True:
            if self._deliveries.empty():  # the starter asks for more, so the window has grown
                self.pump()
            if (batch := await self._deliveries.get()) is None:
                return
            for first in range(0, len(batch), STEP):  # the window follows the starter in steps of this size
                some = batch[first : first + STEP]
                self._window.in_hand += len(some)
                yield [(pending, self.spans.begin(pending, self._take_delivery(pending))) for pending in some]

    def _take_delivery(self, pending: PendingRecord) -> Delivery:
        """Give a record's delivery and forget it: kept deliveries take several times a record's memory."""
        if (delivery := pending.delivery) is None:  # a retry, which is seldom
            return self.formats.decode(pending.record)
        pending.delivery = None
        return delivery

    def _handle_started(self, started: Sequence[PendingRecord]) -> None:
        """Do what `_handle_receipt` does for the records of a chunk that were all started, as most are."""
        self._window.in_hand -= len(started)
        self.outcomes.counts[StartOutcome.STARTED] += len(started)
        self._acknowledge(started, StartOutcome.STARTED)

    def _handle_receipt(self, receipt: Receipt[PendingRecord]) -> None:
        pending = receipt.tag
        self._window.in_hand -= 1

        self.outcomes.counts[receipt.outcome] += 1
        if receipt.outcome is StartOutcome.FAILED:
            pending.attempts += 1
            self._log_failure(pending, receipt)
            self._run_in_background(self._deliver_later(pending))
        elif receipt.outcome is StartOutcome.REJECTED:
            self._run_in_background(self._write_dead_letter(pending, REFUSED, receipt.reason))
        else:
            self._acknowledge([pending], receipt.outcome)

    def _log_failure(self, pending: PendingRecord, receipt: Receipt[PendingRecord]) -> None:
        if self._log_throttle.lets_through():
            failure = {"reason": receipt.reason, "failures": self.outcomes.counts[receipt.outcome]}
            extra = {**describe_held(pending, self.formats), **failure}
            logger.warning("not delivered yet, and tried again", extra=extra)

    async def _deliver_later(self, pending: PendingRecord) -> None:
        await asyncio.sleep(backoff_seconds(pending.attempts))
        self._deliveries.put_nowait([pending])

    async def _write_dead_letter(self, pending: PendingRecord, error_class: str, message: str) -> None:
        """Write a dead letter, with retries until it succeeds; its partition waits for it, the others go on."""
        attempts = 0
        while True:
            try:
                await self.write_dead_letter(pending.record, error_class, message)
                break
            except RetryLater as exc:
                attempts += 1
                self.scheduler.block(pending.partition, str(exc))
                extra = {**describe_held(pending, self.formats), "reason": str(exc)}
                logger.warning("dead letter not written", extra=extra)
                await asyncio.sleep(backoff_seconds(attempts))

        if attempts:
            self.scheduler.unblock(pending.partition)

        self.outcomes.counts[DEAD] += 1
        self._acknowledge([pending], DEAD, error_class)

    def _acknowledge(self, records: Sequence[PendingRecord], outcome: str, error_class: str = "") -> None:
        self.outcomes.acknowledge(records, outcome, error_class)
        if not self._is_pumping:  # once per loop iteration: one answer of a pack acknowledges hundreds
            self._is_pumping = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._is_pumping = False
        self.pump()

    def _run_in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
