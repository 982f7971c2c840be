"""The outlet: sends records to the broker so that they are safe when it returns, or says within bounds why not."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import RetryLater

PATIENCE_SECONDS = 30.0
RECORD_MAX_BYTES = 64 * 1024 * 1024
"""What a dead-letter topic of our making takes: a record that is too large elsewhere must still fit with its reason."""

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
Topics = Mapping[str, int]
"""How many partitions each topic has."""


class BrokerTrouble(RetryLater):
    """The broker refused something or did not answer; the text names its error, the topic and what to do."""

    def __init__(self, topic: str, error: Exception) -> None:
        name = type(error).__name__
        advice = _ADVICE.get(name, "see whether the broker is well; the same may succeed later")
        super().__init__(f"{f'topic {topic}' if topic else 'the Kafka broker'}: {name}; {advice}")
        self.topic = topic
        self.name = name


@contextlib.asynccontextmanager
async def translate_errors(topic: str) -> AsyncGenerator[None]:
    """Raise what the broker has against a topic as BrokerTrouble."""
    errors: Any = importlib.import_module("aiokafka.errors")
    try:
        yield
    except (errors.KafkaError, TimeoutError, OSError) as exc:
        raise BrokerTrouble(topic, exc) from exc


@contextlib.asynccontextmanager
async def open_admin(options: Mapping[str, Any]) -> AsyncGenerator[Any]:
    """Use an admin client for the length of a `with` block."""
    admin: Any = importlib.import_module("aiokafka.admin").AIOKafkaAdminClient(**options)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def list_topics(admin: Any) -> Topics:
    """Give the topics that this user may see; asking for one by its name would make it on some brokers."""
    return {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}


@dataclass(frozen=True, slots=True)
class Sendable:
    """What is to be sent; `timestamp` is in milliseconds since 1970, None is the moment of sending."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None = None


class SafeProducer:
    """Sends records as they are; each is held by all replicas in sync when `send` returns.

    An idempotent producer retries for ever and loses count when the broker refuses a record. So each send is bounded,
    and a producer that failed one is put away for a fresh one. A record whose send failed may still have been
    written: who sends it again must bear it twice.
    """

    def __init__(self, options: Mapping[str, Any], patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._options = {"max_request_size": RECORD_MAX_BYTES, **options, "enable_idempotence": True, "acks": "all"}
        self._patience = patience_seconds
        self._producer: Any = None
        self._starting = asyncio.Lock()
        self._batching = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect; raises BrokerTrouble."""
        async with translate_errors(""), asyncio.timeout(self._patience):
            await self._get_producer()

    async def stop(self) -> None:
        """Disconnect, within the patience for what is still being sent."""
        self._retire(self._producer)
        await asyncio.gather(*self._retiring)

    async def send(self, topic: str, partition: int, record: Sendable) -> None:
        """Send to a partition, or to a lower one where the topic has not so many; raises BrokerTrouble."""
        if record.key is not None or record.value is not None:
            await self._send(topic, partition, record, _send_one)
            return
        async with self._batching:  # batches that wait for room at once use up each other's time
            await self._send(topic, partition, record, _send_batch)

    async def send_all(self, topic: str, records: Iterable[Sendable]) -> None:
        """Send records, each to the partition that its key belongs to; raises BrokerTrouble, after which any may be written."""
        async with self._lend_producer(topic) as producer:
            sent = [
                await producer.send(topic, r.value, r.key, None, r.timestamp, list(r.headers))  # in order of their keys
                for r in records
            ]
            await asyncio.gather(*sent)

    async def _send(self, topic: str, partition: int, record: Sendable, send: "_Send") -> None:
        async with self._lend_producer(topic) as producer:
            await send(producer, topic, partition % len(await producer.partitions_for(topic)), record)

    @contextlib.asynccontextmanager
    async def _lend_producer(self, topic: str) -> AsyncGenerator[Any]:
        producer: Any = None
        try:
            async with translate_errors(topic), asyncio.timeout(self._patience):
                producer = await self._get_producer()
                yield producer
        except BrokerTrouble:
            self._retire(producer)
            raise

    async def _get_producer(self) -> Any:
        async with self._starting:
            if self._producer is None:
                producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(**self._options)
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    def _retire(self, producer: Any) -> None:
        """Use a producer no more, and close it when what it still sends is done or the patience ends."""
        if producer is not None and producer is self._producer:
            self._producer = None
            task = asyncio.create_task(_close(producer, self._patience))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)


async def _send_one(producer: Any, topic: str, partition: int, record: Sendable) -> None:
    await producer.send_and_wait(topic, record.value, record.key, partition, record.timestamp, list(record.headers))


async def _send_batch(producer: Any, topic: str, partition: int, record: Sendable) -> None:
    """Send a record of neither key nor value, which Kafka takes and aiokafka's `send` refuses, as a batch of one."""
    batch = producer.create_batch()
    batch.append(timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers))
    batch.close()
    await (await producer.send_batch(batch, topic, partition=partition))


async def _close(producer: Any, patience_seconds: float) -> None:
    closing = asyncio.create_task(producer.stop())
    await asyncio.wait({closing}, timeout=patience_seconds)
    if not closing.done():
        # it flushes for as long as the broker is away, unless what it holds has failed
        producer._message_accumulator.fail_all(TimeoutError())  # noqa: SLF001 — aiokafka has no way to give up
    await closing


_Send = Callable[[Any, str, int, Sendable], Awaitable[None]]
