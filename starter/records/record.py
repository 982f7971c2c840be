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

    @property
    def source(self) -> str:
        """The partition's name, as in revisions: "topic/partition"."""
        return f"{self.topic}/{self.partition}"


def to_record(raw: Any) -> Record:
    """Make a record of what aiokafka's consumer gives."""
    return Record(raw.topic, raw.partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers))


class DeadRecord(GiveUp):
    """A record that can never become a message; `field` says where, `reason` what is wrong and what to do."""

    def __init__(self, error_class: ErrorClass, reason: str, field: str = "") -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
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
