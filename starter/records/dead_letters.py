"""Dead letters: records that can't become messages, kept as they came in a topic of their own, with the reason."""

import asyncio
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import GiveUp
from shared.kafka.safe_producer import (
    PATIENCE_SECONDS,
    RECORD_MAX_BYTES,
    BrokerError,
    Headers,
    OutgoingRecord,
    SafeProducer,
    list_topics,
    open_admin,
)
from shared.messages.signal_reading import is_source
from starter.records.record import ERROR_CLASSES, Record

SUFFIX = ".dead-letters"
CONNECTOR = "dormice"

ATTEMPTS = "dormice.attempts"
REPLAY_OF = "dormice.replay-of"
ORIGIN = "dormice.origin"
"""The record that failed first. A replay counts as that record, so it never overrides a later one."""
HANDLED = "dormice.handled"
HANDLED_OF = "dormice.handled-of"

_ERRORS = "__connect.errors."  # Kafka Connect's own names, KIP-298
SOURCE_TOPIC = f"{_ERRORS}topic"
_OURS = frozenset(
    [ATTEMPTS, REPLAY_OF, ORIGIN]
    + [_ERRORS + name for name in ("topic", "partition", "offset", "connector.name", "task.id", "stage")]
    + [_ERRORS + name for name in ("class.name", "exception.class.name", "exception.message")]
)
_REPLAY = frozenset((REPLAY_OF, ORIGIN, ATTEMPTS))
_UNLIMITED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_GENEROUS = {
    **_UNLIMITED,
    "max.message.bytes": str(RECORD_MAX_BYTES),
    "message.timestamp.type": "CreateTime",
    # brokers since 4.0 refuse timestamps more than an hour ahead; brokers before 3.6 don't know these two names
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
}


class NotADeadLetter(GiveUp):
    """A record in a dead-letter topic that was not written as a dead letter."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A parsed dead letter; `record` is the stored record, `headers` are the original record's own."""

    record: Record
    headers: Headers
    topic: str
    partition: int
    offset: int
    error_class: str
    message: str
    stage: str
    attempts: int
    origin: str
    """The record that failed first, "topic@id/partition/offset"; differs from the fields above if a replay failed."""
    replay_of: str = ""
    """If a replay failed again: the dead letter that was replayed."""

    @property
    def position(self) -> str:
        """Where it lies in its topic: "partition/offset"."""
        return f"{self.record.partition}/{self.record.offset}"

    @property
    def topic_id(self) -> str:
        """The id of the topic that it came from; empty where none was known."""
        name = self.origin.rpartition("/")[0].rpartition("/")[0]
        topic, _, topic_id = name.rpartition("@")
        return topic_id if topic == self.topic else ""

    @property
    def identity(self) -> tuple[str, int]:
        """Equal for all copies of one failure that crashes and repeated replays leave; valid in this process only."""
        # without an id, key and value tell the records of a source topic that was made again, with offsets from zero
        name = self.replay_of or f"{self.topic}@{self.topic_id}/{self.partition}/{self.offset}"
        return name, hash((self.record.key, self.record.value))

    @property
    def replay_headers(self) -> Headers:
        """The headers of a replay: the record's own, then the name of this dead letter and its attempts."""
        name = f"{self.record.source}/{self.record.offset}"
        texts = {REPLAY_OF: name, ORIGIN: self.origin, ATTEMPTS: str(self.attempts)}
        return (*self.headers, *((header, text.encode()) for header, text in texts.items()))


def find_origin(record: Record) -> tuple[str, int]:
    """Give the source and offset that a record counts as; for a replay, those of the record that failed first."""
    if not record.headers:  # as most are
        return record.source, record.offset
    origin = next((_to_text(value) for name, value in reversed(record.headers) if name == ORIGIN), "")
    source, _, text = origin.rpartition("/")
    offset = _to_number(text)
    # anybody may have written the header, and a signal with a longer source would be refused
    if source == "" or offset is None or not is_source(source):
        return record.source, record.offset

    topic, _, partition = source.rpartition("/")
    if record.topic_id and topic == record.topic:  # written by somebody who knew no ids, such as Kafka Connect
        source = f"{topic}@{record.topic_id}/{partition}"
    return source, offset


def find_own_headers(record: Record) -> Headers:
    """Give a record's headers without those that a replay has added."""
    return _split(record.headers, REPLAY_OF, _REPLAY)[0]


def to_dead_letter(record: Record, error_class: str, message: str) -> Headers:
    """Give the headers of a record's dead letter: the record's own unchanged, then why it is dead.

    Key, value and timestamp stay as they are. The attempts continue from a replay's header. Text that UTF-8 can't hold
    is escaped.
    """
    own, replay_of, attempts = _split(record.headers, REPLAY_OF, _REPLAY)
    texts = {
        SOURCE_TOPIC: record.topic,
        f"{_ERRORS}partition": str(record.partition),
        f"{_ERRORS}offset": str(record.offset),
        f"{_ERRORS}connector.name": CONNECTOR,
        f"{_ERRORS}task.id": "0",
        f"{_ERRORS}stage": "decode" if error_class in ERROR_CLASSES else "deliver",
        f"{_ERRORS}class.name": error_class,
        f"{_ERRORS}exception.class.name": error_class,
        f"{_ERRORS}exception.message": message,
        ATTEMPTS: str(attempts + 1),
    }
    if replay_of:
        texts[REPLAY_OF] = replay_of
    if replay_of or record.topic_id:
        texts[ORIGIN] = "/".join(map(str, find_origin(record)))

    return (*own, *((name, text.encode(errors="backslashreplace")) for name, text in texts.items()))


def read_dead_letter(record: Record) -> DeadLetter:
    """Read a record of a dead-letter topic; raises NotADeadLetter."""
    own, replay_of, attempts = _split(record.headers, SOURCE_TOPIC, _OURS)
    texts = {name: _to_text(value) for name, value in record.headers if name in _OURS}
    topic = texts.get(SOURCE_TOPIC)

    partition, offset = (_to_number(texts.get(f"{_ERRORS}{name}", "")) for name in ("partition", "offset"))
    if not topic or partition is None or offset is None:
        name = f"{record.source}/{record.offset}"
        raise NotADeadLetter(f"{name}: does not say which record it was; read it with a Kafka tool")

    return DeadLetter(
        record=record,
        headers=own,
        topic=topic,
        partition=partition,
        offset=offset,
        error_class=texts.get(f"{_ERRORS}class.name", ""),
        message=texts.get(f"{_ERRORS}exception.message", ""),
        stage=texts.get(f"{_ERRORS}stage", ""),
        attempts=max(attempts, 1),  # Kafka Connect's own dead letters count none
        origin=texts.get(ORIGIN, f"{topic}/{partition}/{offset}"),
        replay_of=replay_of,
    )


def _split(headers: Headers, first: str, ours: frozenset[str]) -> tuple[Headers, str, int]:
    """Give the headers that are not ours, the dead letter that the record replays, and its attempts (0 without any).

    Our headers begin at the last one named `first`. Headers of the same names before it are the record's own: it may
    come from a dead-letter topic itself. Headers that others added after ours are kept, too.
    """
    start = max((i for i, (name, _) in enumerate(headers) if name == first), default=len(headers))
    tail = {name: _to_text(value) for name, value in headers[start:]}
    own = (*headers[:start], *(header for header in headers[start:] if header[0] not in ours))
    return own, tail.get(REPLAY_OF, ""), _to_number(tail.get(ATTEMPTS, "")) or 0


def _to_text(value: bytes | None) -> str:
    return (value or b"").decode(errors="backslashreplace")


def _to_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


class DeadLetterWriter(SafeProducer):
    """Writes dead letters to topics beside the source topics; `options` are those of all aiokafka clients."""

    def __init__(self, options: Mapping[str, Any], patience_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(options, patience_seconds)
        self._shared_options = options
        self._topics: set[str] = set()
        self._making = asyncio.Lock()

    async def write(self, record: Record, error_class: str, message: str) -> None:
        """Write a record's dead letter for good, and make its topic if need be; raises BrokerError.

        After an error a record may be written twice: readers count that as one.
        """
        topic = record.topic + SUFFIX
        headers = to_dead_letter(record, error_class, message)
        try:
            await self._ensure(topic, record.topic)
            letter = OutgoingRecord(record.key, record.value, headers, record.timestamp)
            await self.send(topic, record.partition, letter)
        except BrokerError:
            self._topics.discard(topic)
            raise

    async def _ensure(self, topic: str, source: str) -> None:
        async with self._making:
            if topic in self._topics:
                return
            async with open_admin(self._shared_options, topic, self._patience) as admin:
                topics = await list_topics(admin)
                if topic not in topics:
                    await make_topic(admin, topic, topics.get(source, 1))
            self._topics.add(topic)


async def make_topic(admin: Any, topic: str, partitions: int, *, is_trial: bool = False) -> None:
    """Make a topic that keeps its records for good, or with `is_trial` only check the request. Raises a KafkaError."""
    errors: Any = importlib.import_module("aiokafka.errors")
    new_topic: Any = importlib.import_module("aiokafka.admin").NewTopic

    for configs in (_GENEROUS, _UNLIMITED):
        # aiokafka accepts -1 replicas, the broker's default, only together with an assignment, even an empty one
        wanted = new_topic(topic, partitions, -1, replica_assignments={}, topic_configs=configs)
        answer = await admin.create_topics([wanted], validate_only=is_trial)
        error: Any = errors.for_code(answer.topic_errors[0][1])
        if error in (errors.NoError, errors.TopicAlreadyExistsError):
            return
        if error is not errors.InvalidConfigurationError:
            break

    raise error(topic)
