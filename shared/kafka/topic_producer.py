"""The producer of handlers: many callers at once, batches, and each record sent once by this process."""

import asyncio
import hashlib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from shared.errors import GiveUp
from shared.kafka.safe_producer import BrokerError, OutgoingRecord, SafeProducer, send_batch, translate_errors

HELD_MAX = 10_000  # records that one process holds while the broker is in trouble; further ones are refused
LINGER_MS = 5  # how long a batch waits for more records: those of one pack come within a few milliseconds
BATCH_MAX_BYTES = 256 * 1024  # far below the 1 MB that brokers take by default
WRITTEN_MAX = 50_000  # written records that one process remembers, by some 200 bytes each
STOP_SECONDS = 2.0  # for what is on its way when the process ends
TRIES = 3  # for a record that was not written because the broker refused another one


class PartitionMissing(GiveUp):
    """A topic has no such partition."""


class RecordOffset(NamedTuple):
    """Where a record was written; -1: an earlier try wrote it, and the broker no longer knows its offset."""

    partition: int
    offset: int


class TopicProducer(SafeProducer):
    """Sends each record once: whoever sends an equal one again waits for the send that is under way, or has its result.

    A send goes on when its caller has left: an idempotent producer repeats it under the same sequence number until the
    broker has it. A call whose outcome Temporal never got is repeated for the same cycle, and finds the record written.
    So records are written twice only when an equal one is sent by another process, which can't know about the first
    one, for another cycle, or after very many others.
    """

    def __init__(self, options: Mapping[str, Any], patience_seconds: float) -> None:
        """Take aiokafka's options; a caller of `write` waits for the patience at most, in seconds."""
        limits = {
            "linger_ms": LINGER_MS,
            "max_batch_size": BATCH_MAX_BYTES,
            "request_timeout_ms": int(patience_seconds * 800),  # so that an unknown topic is known within the patience
        }
        super().__init__({**options, **limits}, patience_seconds)
        self._writes: dict[bytes, asyncio.Task[RecordOffset]] = {}  # by digest, until a caller has the result
        self._written: dict[tuple[bytes, str], RecordOffset] = {}  # by digest and cycle, oldest first
        self._errors: Any = importlib.import_module("aiokafka.errors")
        self._partitioner: Any = importlib.import_module("aiokafka.partitioner").DefaultPartitioner()

    async def write(self, topic: str, partition: int | None, record: OutgoingRecord, cycle: str) -> RecordOffset:
        """Return once all replicas in sync have the record; None: its key decides the partition, as Java's client does.

        `cycle` is the same only for repeated calls of one cycle. Raises BrokerError, also when the patience ends first,
        and PartitionMissing.
        """
        digest = hashlib.blake2b(repr((topic, partition, record)).encode(), digest_size=16).digest()
        if (written := self._written.get((digest, cycle))) is not None:
            return written

        writing = self._writes.get(digest)
        if writing is None:
            self._make_room(topic)
            writing = self._writes[digest] = asyncio.create_task(self._write(topic, partition, record))
            writing.add_done_callback(lambda task: self._forget_failure(digest, task))

        await asyncio.wait([writing], timeout=self._patience)
        if not writing.done():
            raise BrokerError(topic, TimeoutError())

        self._writes.pop(digest, None)
        written = self._written[digest, cycle] = writing.result()
        if len(self._written) > WRITTEN_MAX:
            del self._written[next(iter(self._written))]
        return written

    async def stop(self) -> None:
        """Give up what no caller waits for any more, and disconnect."""
        writes = list(self._writes.values())
        for writing in writes:
            writing.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        self._patience = STOP_SECONDS
        await super().stop()

    def _make_room(self, topic: str) -> None:
        if len(self._writes) >= HELD_MAX:
            self._writes = {digest: task for digest, task in self._writes.items() if not task.done()}
        if len(self._writes) >= HELD_MAX:
            raise BrokerError(topic, TimeoutError())

    def _forget_failure(self, digest: bytes, writing: asyncio.Task[RecordOffset]) -> None:
        # it may be sent anew; asking for the error marks it as seen
        if writing.cancelled() or writing.exception() is not None:
            self._writes.pop(digest, None)

    async def _write(self, topic: str, partition: int | None, record: OutgoingRecord) -> RecordOffset:
        errors = self._errors
        too_large = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
        unwritten = (errors.OutOfOrderSequenceNumber, errors.ProducerClosed)
        is_alone = record.key is None and record.value is None
        tries = TRIES

        async with translate_errors(topic):
            while True:
                producer = await self._get_producer()
                number = await self._choose_partition(producer, topic, partition, record.key)
                try:
                    return await self._send(producer, topic, number, record, is_alone=is_alone)
                except errors.KafkaTimeoutError:
                    continue  # there was no room for it yet, because the broker takes nothing
                except errors.KafkaError as exc:
                    self._retire(producer)  # the sequence numbers after a refused record are wrong
                    tries -= 1
                    if not (tries and (isinstance(exc, unwritten) or (isinstance(exc, too_large) and not is_alone))):
                        raise
                    is_alone = is_alone or isinstance(exc, too_large)  # another record may have been too large

    async def _send(
        self, producer: Any, topic: str, number: int, record: OutgoingRecord, *, is_alone: bool
    ) -> RecordOffset:
        if is_alone:
            async with self._batching:
                written = await send_batch(producer, topic, number, record)
        else:
            headers = list(record.headers)
            written = await producer.send_and_wait(topic, record.value, record.key, number, record.timestamp, headers)
        return RecordOffset(number, written.offset)

    async def _choose_partition(self, producer: Any, topic: str, wanted: int | None, key: bytes | None) -> int:
        try:
            partitions = sorted(await producer.partitions_for(topic))
        except self._errors.UnknownTopicOrPartitionError as exc:
            if await producer.client.force_metadata_update():
                raise
            raise self._errors.KafkaConnectionError("no broker answers") from exc  # so it may exist

        if wanted is None:
            return self._partitioner(key, partitions, partitions)
        if wanted not in partitions:
            raise PartitionMissing(f"topic {topic} has {len(partitions)} partitions, and none is {wanted}")
        return wanted
