"""Records: what a Kafka topic holds, and the error for one that can't become a message."""

from typing import Any, Literal, NamedTuple, get_args

from shared.errors import EnvelopeFlaw, GiveUp
from shared.messages.json_value import parse_json

ErrorClass = EnvelopeFlaw | Literal["MissingKey", "CloudEventProblem"]
"""Why a record is dead, for programs that select by it; the names are part of the interface."""

ERROR_CLASSES: tuple[ErrorClass, ...] = (*get_args(EnvelopeFlaw), "MissingKey", "CloudEventProblem")

Headers = dict[str, bytes | None]
"""Headers by name; if a name occurs several times, the last one counts, as with Kafka's own `lastHeader`."""


class Record(NamedTuple):
    """One record as the broker gave it; `timestamp` is in milliseconds since 1970, a header's value may be null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    topic_id: str = ""
    """The id of the topic, empty where none is known: one that is made again under the same name has another."""

    @property
    def source(self) -> str:
        """The partition's name, as in revisions: "topic@id/partition", or "topic/partition" without an id.

        With the id, no offset of a topic that was deleted is compared with one of the topic that took its name.
        """
        topic = f"{self.topic}@{self.topic_id}" if self.topic_id else self.topic
        return f"{topic}/{self.partition}"


def to_record(raw: Any, topic_id: str = "") -> Record:
    """Make a record of what aiokafka's consumer gives."""
    fields = (raw.topic, raw.partition, raw.offset, raw.timestamp, raw.key, raw.value)
    return Record(*fields, tuple(raw.headers), topic_id)


class DeadRecord(GiveUp):
    """A record that can never become a message; `field` says where, `reason` what is wrong and what to do."""

    def __init__(self, error_class: ErrorClass, reason: str, field: str = "") -> None:
        text = f"{field}: {reason}" if field else reason
        super().__init__(text)
        self.error_class: ErrorClass = error_class
        self.reason = reason
        self.field = field


def read_text(raw: bytes, field: str) -> str:
    """Read a key or a header as UTF-8; raises DeadRecord."""
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise DeadRecord("NotUtf8", f"is not UTF-8 text (byte {exc.start + 1}); send UTF-8", field) from exc


def read_json(raw: str | bytes, field: str) -> Any:
    """Read strict JSON; raises DeadRecord."""
    try:
        return parse_json(raw)
    except ValueError as exc:
        error_class = "NotUtf8" if isinstance(exc.__cause__, UnicodeDecodeError) else "NotJson"
        raise DeadRecord(error_class, f"{exc}; send one JSON document", field) from exc
