"""The bridge: a consumer group member that turns records into messages and commits what needs no more work."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from shared.errors import Misconfigured, RetryLater
from shared.kafka.topic_ids import read_topic_ids
from shared.telemetry.sdk import Telemetry
from starter.bridge.delivery_loop import DeliveryLoop, RecordOutcomes, WriteDeadLetter
from starter.bridge.group_lag import AGAIN_SECONDS, read_committed
from starter.bridge.offsets import Assignment, CommittedOffset, Partition, PartitionOffsets, describe_cut
from starter.bridge.pending_record import RecordSpans, decode_records
from starter.bridge.record_scheduler import RecordScheduler
from starter.bridge.watchdog import LOOKS, Watchdog
from starter.bridge.window import SIZE_MIN, limits_of
from starter.records.formats import Formats
from starter.records.record import to_record
from starter.starting.bulk import BulkStarter

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
PAUSED_POLL_SECONDS = 0.02
"""The second applies while partitions are paused: records for them do not wake the consumer."""

RECORDS_AT_ONCE = 2000
SLICE = 100
"""Records taken in before other tasks get a turn: the next fetch is sent, and answered while the rest is read."""

FETCHED_AT_ONCE_BYTES = 64 * 1024
"""Per partition. Records fetched beyond the window only cost memory."""

COMMIT_EVERY_SECONDS = 1.0
ENDS_EVERY_SECONDS = 5.0
METADATA_SECONDS = 10.0
"""How long the client believes what it knows of topics: one that is made again, or gets partitions, is seen then."""

COMMIT_SECONDS = 10.0
"""aiokafka repeats a commit while the broker is away; a late one might undo what another member committed."""

LEAVE_SECONDS = 10.0
"""A broker that is away for longer removes the member when its session expires."""

DRAIN_SHARE = 0.8
"""Share of the rebalance timeout for records under way of revoked partitions; the rest is for the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """What to consume, as whom, and how long things may take."""

    topics: tuple[str, ...]
    group: str
    member: str | None = None
    """Name of a static member: it keeps its partitions over a restart shorter than the session timeout."""
    client: Mapping[str, Any]
    """Options of every Kafka client: servers, security."""
    drain: timedelta = timedelta(seconds=30)
    session: timedelta = timedelta(seconds=30)
    """After this time of silence a member counts as dead, and its partitions go to others."""
    rebalance: timedelta = timedelta(seconds=60)
    patience: timedelta = timedelta(minutes=2)
    """The process ends itself after this time without progress while there is lag."""


class Bridge(ConsumerRebalanceListener):
    """One member of the group. `run` it once."""

    def __init__(
        self,
        options: BridgeOptions,
        formats: Formats,
        starter: BulkStarter,
        write_dead_letter: WriteDeadLetter,
        telemetry: Telemetry,
    ) -> None:
        self.options = options
        self._formats = formats
        self.starter = starter
        self.scheduler = RecordScheduler(limits_of(SIZE_MIN))
        self.assignment = Assignment()
        spans = RecordSpans(telemetry, options.group)
        outcomes = RecordOutcomes(self.scheduler, self.assignment, formats)
        self.delivery_loop = DeliveryLoop(self.scheduler, outcomes, formats, starter, write_dead_letter, spans)
        self._watchdog = Watchdog(options.patience)
        self._consumer: Any = _build_consumer(options)  # aiokafka leaves the types of partitions open
        self._ends: dict[Any, int] = {}
        self.received = self.commit_failures = self.rebalances = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until `stopping` is set, then drain and commit.

        Raises RetryLater when the consumer has stopped by itself, offsets went back or the last ones could not be
        committed; KafkaError when the broker refuses this client; Misconfigured when the Temporal server does.
        """
        self._consumer.subscribe(self.options.topics, listener=self)
        await self._consumer.start()
        delivering = asyncio.create_task(self.delivery_loop.run())
        background = (
            self._consume(),
            _repeat(COMMIT_EVERY_SECONDS, self.commit),
            _repeat(ENDS_EVERY_SECONDS, self._fetch_end_offsets),
            _repeat(self.options.patience.total_seconds() / (2 * LOOKS), self._watch),
        )
        working = [delivering, *(asyncio.create_task(work) for work in background)]

        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([*working, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in working:
                if task.done():
                    task.result()
            self.delivery_loop.close()
            await _wait(lambda: self.scheduler.in_flight == 0, self.options.drain.total_seconds())
        finally:
            await self._end(working[1:], delivering, stop)

        if self.assignment.to_commit():
            raise RetryLater(
                f"group {self.options.group}: not all that is done could be committed; it is read once more by the "
                "next bridge, which does nothing with it; see whether the broker is well"
            )

    async def _end(self, working: list[asyncio.Task[None]], *others: asyncio.Task[Any]) -> None:
        self.delivery_loop.close()
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        await self._commit_last()
        await self.delivery_loop.finish()
        for task in others:
            task.cancel()

        await asyncio.gather(*others, return_exceptions=True)
        await self._leave()

    async def _leave(self) -> None:
        """Leave the group, in a separate task: a waiting fetch cancels the task that stops it (aiokafka 647)."""
        leaving = asyncio.create_task(self._consumer.stop())
        await asyncio.wait([leaving], timeout=LEAVE_SECONDS)
        if leaving.done() and not leaving.cancelled():
            leaving.result()
        leaving.cancel()

    async def _consume(self) -> None:
        while True:
            timeout = PAUSED_POLL_SECONDS if self._consumer.paused() else POLL_SECONDS
            batches = await self._consumer.getmany(timeout_ms=round(timeout * 1000), max_records=RECORDS_AT_ONCE)

            for partition in await self._check_offsets():
                batches.pop(TopicPartition(*partition), None)

            held = {partition: self.assignment.find(Partition(*partition)) for partition in batches}
            for partition, messages in batches.items():
                for first in range(0, len(messages), SLICE):
                    if (offsets := held[partition]) is None or not self.assignment.is_current(offsets):
                        break  # revoked meanwhile; if assigned again, it is read anew
                    self._take_in(offsets, messages[first : first + SLICE])
                    await asyncio.sleep(0)

            await self._leave_tails()
            self.delivery_loop.pump()
            self.apply_pauses()

    async def _check_offsets(self) -> list[Partition]:
        """Find out of which topic the committed offsets of newly assigned partitions are; gives those put back."""
        put_back: list[Partition] = []
        while new := [offsets for offsets in self.assignment.find_all() if offsets.topic_id is None]:
            committed = await read_committed(self._consumer, [TopicPartition(*offsets.partition) for offsets in new])
            if not committed:  # meanwhile a partition may be revoked
                await asyncio.sleep(AGAIN_SECONDS)
                continue

            current = [offsets for offsets in new if self.assignment.is_current(offsets)]
            put_back += [
                each.partition for each in current if self._begin(each, committed[TopicPartition(*each.partition)])
            ]
        return put_back

    def _begin(self, offsets: PartitionOffsets, committed: CommittedOffset) -> bool:
        """Begin with a partition: with its first record, which is then said, if its topic was made again."""
        offsets.topic_id = committed.topic_id
        if not committed.is_of_older_topic:
            offsets.begin = committed.offset or 0
            return False

        logger.warning("topic made again", extra={"reason": committed.describe_flaw(offsets.partition)})
        with contextlib.suppress(IllegalStateError):  # just revoked
            self._consumer.seek(TopicPartition(*offsets.partition), 0)
        return True

    def _take_in(self, offsets: PartitionOffsets, messages: Sequence[Any]) -> None:
        # where the partition ends before the committed offset, the consumer begins at its first record by itself
        if messages[0].offset < offsets.begin:
            seen = f"the next record is at {messages[0].offset}"
            raise Misconfigured(describe_cut(offsets.partition, offsets.begin, seen))

        now = time.monotonic()
        records = [to_record(message, offsets.topic_id or "") for message in messages]
        for record in records:
            offsets.received(record.offset, now, record.timestamp)
        for pending in decode_records(records, offsets.partition, offsets.epoch, self._formats):
            self.scheduler.offer(pending)
        self.received += len(messages)
        self._watchdog.note_progress()

    async def _leave_tails(self) -> None:
        """Skip offsets without records: transaction markers, and gaps that compaction left."""
        for partition in self.assignment.partitions:
            offsets = self.assignment.find(partition)
            if offsets is not None and not offsets.outstanding and offsets.topic_id is not None:
                with contextlib.suppress(IllegalStateError):  # just revoked
                    position = await self._consumer.position(TopicPartition(*partition))
                    if not offsets.outstanding:
                        offsets.advance(position)

    def apply_pauses(self) -> None:
        """Bring the consumer's pauses in line with the record scheduler's."""
        assigned = self._consumer.assignment()
        paused = self._consumer.paused()
        held_back = {TopicPartition(*partition) for partition in self.scheduler.pausing} & assigned
        if begin := held_back - paused:
            self._consumer.pause(*begin)
        if end := paused - held_back:
            self._consumer.resume(*end)

    async def _commit_last(self) -> None:
        """Commit what is left, with retries: a rebalance may prevent it for a moment, the broker for longer."""
        give_up_at = time.monotonic() + COMMIT_SECONDS
        while self.assignment.to_commit() and time.monotonic() < give_up_at:
            await self.commit()
            await asyncio.sleep(POLL_SECONDS)

    async def commit(self, partitions: Collection[Partition] | None = None) -> None:
        """Commit what needs no more work, of all partitions or of some; a failed commit is logged and repeated."""
        positions = self.assignment.to_commit(partitions)
        if not positions:
            return

        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._consumer.commit(
                    {
                        TopicPartition(*partition): (at, self.assignment.write_note(partition))
                        for partition, at in positions.items()
                    }
                )
        except (CommitFailedError, IllegalStateError, KafkaError, TimeoutError) as exc:  # a rebalance, or no broker
            self.commit_failures += 1
            logger.warning("offsets not committed", extra={"reason": f"{type(exc).__name__}: {exc}"})
        else:
            self.assignment.committed(positions)
            self._watchdog.note_progress()

    async def _fetch_end_offsets(self) -> None:
        """Ask for the partitions' end offsets: fetches report them too, but paused partitions are not fetched."""
        with contextlib.suppress(KafkaError):  # the broker is away: keep the last known ends
            self._ends = await self._consumer.end_offsets(self._consumer.assignment())
            self.assignment.refuse_other_topics(await read_topic_ids(self._consumer, self.options.topics))

    async def _watch(self) -> None:
        sentence = self._watchdog.look(
            time.monotonic(),
            lag=self._count_lag(),
            in_flight=self.scheduler.in_flight,
            is_paused=bool(self.paused),
            is_blocked=bool(self.scheduler.blocked),
        )
        if sentence:
            raise RetryLater(sentence)

    def _count_lag(self) -> int:
        known = ((self.find_end(offsets.partition), offsets.reached) for offsets in self.assignment.find_all())
        return sum(max(0, end - reached) for end, reached in known if end is not None and reached is not None)

    def find_end(self, partition: Partition) -> int | None:
        """Give the offset after the last readable record, as last reported by the broker; None before that."""
        held = TopicPartition(*partition)
        fetched = self._consumer.last_stable_offset(held) if held in self._consumer.assignment() else None
        return max((end for end in (fetched, self._ends.get(held)) if end is not None), default=None)

    @property
    def paused(self) -> frozenset[Partition]:
        """The partitions that are not fetched now."""
        return frozenset(Partition(*partition) for partition in self._consumer.paused())

    # aiokafka awaits these two methods
    async def on_partitions_revoked(self, revoked: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Let the records under way of revoked partitions finish, commit, and forget the partitions."""
        partitions = [Partition(*partition) for partition in revoked]
        under_way = self.scheduler.revoke(partitions)

        def is_over() -> bool:
            return not any(self.assignment.is_outstanding(h.partition, h.epoch, h.offset) for h in under_way)

        await _wait(is_over, self.options.rebalance.total_seconds() * DRAIN_SHARE)
        await self.commit(partitions)
        self.assignment.revoke(partitions)

    async def on_partitions_assigned(self, assigned: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Begin with partitions and pause again as needed: the consumer has forgotten its pauses."""
        partitions = [Partition(*partition) for partition in assigned]
        self.rebalances += 1
        self.scheduler.assign(partitions, self.assignment.assign(partitions))
        self.apply_pauses()
        self._watchdog.note_progress()
        logger.info("partitions assigned", extra={"partitions": sorted(map(str, partitions))})


async def _repeat(every_seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(every_seconds)
        await work()


async def _wait(is_over: Callable[[], bool], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not is_over():  # noqa: ASYNC110 — many tasks have to end, and no event says so
                await asyncio.sleep(0.02)


def _build_consumer(options: BridgeOptions) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        **options.client,
        group_id=options.group,
        group_instance_id=options.member,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_poll_records=RECORDS_AT_ONCE,
        max_partition_fetch_bytes=FETCHED_AT_ONCE_BYTES,
        session_timeout_ms=round(options.session.total_seconds() * 1000),
        heartbeat_interval_ms=round(options.session.total_seconds() * 1000 / 10),
        metadata_max_age_ms=round(METADATA_SECONDS * 1000),
        rebalance_timeout_ms=round(options.rebalance.total_seconds() * 1000),
    )
