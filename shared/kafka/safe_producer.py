"""The clients: a producer that has sent a record safely or fails within a time limit, an admin client and a reader."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import InvalidSetting, RetryLater

PATIENCE_SECONDS = 30.0
RECORD_MAX_BYTES = 64 * 1024 * 1024
"""Record size that the dead-letter topics we create accept: a record too large elsewhere must fit with its reason."""

_ADVICE = {
    "TopicAuthorizationFailedError": "create the topic, or allow this user to create, describe, read and write it",
    "ClusterAuthorizationFailedError": "create the topic, or allow this user to create it",
    "MessageSizeTooLargeError": "raise max.message.bytes of the topic",
    "RecordListTooLargeError": "raise max.message.bytes of the topic",
    "InvalidTimestampError": "raise message.timestamp.after.max.ms and message.timestamp.before.max.ms of the topic",
    "UnknownTopicOrPartitionError": "create the topic",
    "InvalidTopicError": "a topic's name has at most 249 characters; shorten the source topic's",
    "NotEnoughReplicasError": "bring back the brokers that hold its replicas",
    "PolicyViolationError": "create the topic as the broker's policy wants it",
}

Headers = tuple[tuple[str, bytes | None], ...]
Topics = Mapping[str, int]  # topic → number of its partitions


class BrokerError(RetryLater):
    """The broker refused something or did not answer; the text names its error, the topic and what to do.

    `name` is that of aiokafka's error; `is_passing`: Kafka says that the same may succeed without any change.
    """

    def __init__(self, topic: str, error: Exception) -> None:
        name = type(error).__name__
        self.name = name
        self.is_passing = isinstance(error, TimeoutError | OSError) or bool(getattr(error, "retriable", False))
        advice = _ADVICE.get(name, "see whether the broker is well; the same may succeed later")
        what = f"topic {topic}" if topic else "the Kafka broker"
        super().__init__(f"{what}: {name}; {advice}")


@contextlib.asynccontextmanager
async def translate_errors(topic: str) -> AsyncGenerator[None]:
    """Turn aiokafka's errors about a topic into BrokerError."""
    errors: Any = importlib.import_module("aiokafka.errors")
    try:
        yield
    except (errors.KafkaError, TimeoutError, OSError) as exc:
        raise BrokerError(topic, exc) from exc


@contextlib.asynccontextmanager
async def open_admin(
    options: Mapping[str, Any], topic: str = "", patience_seconds: float = PATIENCE_SECONDS
) -> AsyncGenerator[Any]:
    """Use an admin client, about a topic if one is named, for a `with` block of limited time. Raises BrokerError."""
    admin: Any = importlib.import_module("aiokafka.admin").AIOKafkaAdminClient(**options)
    async with translate_errors(topic), asyncio.timeout(patience_seconds):
        try:
            await admin.start()
            yield admin
        finally:
            await admin.close()


@contextlib.asynccontextmanager
async def open_reader(options: Mapping[str, Any], **more: Any) -> AsyncGenerator[Any]:
    """Give a consumer without a group for the length of a `with` block; `more` goes to aiokafka. Raises BrokerError."""
    consumer: Any = importlib.import_module("aiokafka").AIOKafkaConsumer(**options, enable_auto_commit=False, **more)
    try:
        async with translate_errors(""), asyncio.timeout(PATIENCE_SECONDS):
            await consumer.start()
        # aiokafka's `stop` cancels its caller if a task that `start` created has not run yet
        await asyncio.sleep(0)
        yield consumer
    finally:
        await consumer.stop()


async def list_topics(admin: Any, *wanted: str, named_by: str = "TOPIC") -> Topics:
    """Give the topics that this user may see; asking for one by name would create it on some brokers.

    Raises InvalidSetting when one of the wanted topics, which `named_by` names, is not among them.
    """
    topics = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
    for topic in wanted:
        if topic not in topics:
            problem = f"there is no topic {topic!r}, or this user may not see it; create or allow it"
            raise InvalidSetting(f"{named_by}: {problem}")
    return topics


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to send; `timestamp` is in milliseconds since 1970, None is the moment of sending."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None = None


class SafeProducer:
    """Sends records unchanged; when `send` returns, all replicas in sync have the record.

    An idempotent producer retries for ever, and loses its sequence numbers when the broker refuses a record. So each
    send has a time limit, and a producer whose send failed is replaced by a new one. A record whose send failed may
    still have been written: a caller that sends it again must accept duplicates.
    """

    def __init__(self, options: Mapping[str, Any], patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._options = {"max_request_size": RECORD_MAX_BYTES, **options, "enable_idempotence": True, "acks": "all"}
        self._patience = patience_seconds
        self._producer: Any = None
        self._starting = asyncio.Lock()
        self._batching = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect; raises BrokerError."""
        async with translate_errors(""), asyncio.timeout(self._patience):
            await self._get_producer()

    async def stop(self) -> None:
        """Disconnect; records that are still being sent get the patience in seconds to finish."""
        self._retire(self._producer)
        await asyncio.gather(*self._retiring)

    async def send(self, topic: str, partition: int, record: OutgoingRecord) -> None:
        """Send to a partition, modulo the topic's number of partitions; raises BrokerError."""
        is_empty = record.key is None and record.value is None
        # concurrent batches that wait for room use up each other's time
        waiting = self._batching if is_empty else contextlib.nullcontext()
        async with waiting, self._share_producer(topic) as producer:
            number = partition % len(await producer.partitions_for(topic))
            if is_empty:
                await send_batch(producer, topic, number, record)
            else:
                headers = list(record.headers)
                await producer.send_and_wait(topic, record.value, record.key, number, record.timestamp, headers)

    async def send_all(self, topic: str, records: Iterable[OutgoingRecord]) -> None:
        """Send each record to the partition of its key; after BrokerError any of them may have been written."""
        async with self._share_producer(topic) as producer:
            sent = [
                await producer.send(topic, r.value, r.key, None, r.timestamp, list(r.headers))  # in order of their keys
                for r in records
            ]
            await asyncio.gather(*sent)

    @contextlib.asynccontextmanager
    async def _share_producer(self, topic: str) -> AsyncGenerator[Any]:
        producer: Any = None
        try:
            async with translate_errors(topic), asyncio.timeout(self._patience):
                producer = await self._get_producer()
                yield producer
        except BrokerError:
            self._retire(producer)
            raise

    async def _get_producer(self) -> Any:
        async with self._starting:
            if self._producer is None:
                producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(**self._options)
                try:
                    await producer.start()
                except BaseException:
                    # at the end of the patience, too, which comes as a cancellation: a producer that nobody stops keeps
                    # its connection and its tasks; the caller gets BrokerError, and the next send makes another
                    # producer
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    def _retire(self, producer: Any) -> None:
        """Stop using a producer, and close it when its pending sends are done or the patience ends."""
        if producer is not None and producer is self._producer:
            self._producer = None
            task = asyncio.create_task(_close(producer, self._patience))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)


async def send_batch(producer: Any, topic: str, partition: int, record: OutgoingRecord) -> Any:
    """Send a record as a batch of one, also one with neither key nor value, which aiokafka's `send` refuses."""
    batch = producer.create_batch()
    batch.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers))
    batch.close()
    return await (await producer.send_batch(batch, topic, partition=partition))


async def _close(producer: Any, patience_seconds: float) -> None:
    closing = asyncio.create_task(producer.stop())
    await asyncio.wait({closing}, timeout=patience_seconds)
    if not closing.done():
        # `stop` waits for the broker without limit, unless the pending records have failed
        producer._message_accumulator.fail_all(TimeoutError())  # noqa: SLF001 — aiokafka has no way to give up
    await closing
