"""Schedules: records of kafka-message-scheduler, whose headers say when and where their value is to be sent.

The header names, and what the records that are sent have of them, are those of https://github.com/etf1/
kafka-message-scheduler (schedule/kafka/schedule.go and runner/kafka/handler.go, version 0.0.9).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from activities.handlers.topic import RecordPlan, is_topic_name, to_payload
from starter.records.dead_letters import ORIGIN, REPLAY_OF, find_origin, find_own_headers
from starter.records.moments import read_epoch_seconds
from starter.records.record import DeadRecord, Record, read_text

FORMAT = "scheduler-headers"
EPOCH = "scheduler-epoch"
TARGET_TOPIC = "scheduler-target-topic"
TARGET_KEY = "scheduler-target-key"
TIMESTAMP = "scheduler-timestamp"
KEY = "scheduler-key"
TOPIC = "scheduler-topic"
"""What the records that are sent say of their schedule: its timestamp in seconds, its key and its topic."""

ENDING_SECONDS = 60.0
"""How long a message may take to end after it has written its tombstone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """How schedules are treated."""

    history_topic: str = ""
    """A topic that gets a copy of each record that is sent; none when empty."""
    grace: timedelta | None = None
    """A schedule whose moment lies further than this before its own record is deleted, not sent; None sends all."""
    due_since: datetime | None = None
    """A schedule whose moment is before it is left to whoever had to send it; None leaves none."""


def map_schedule(record: Record, options: ScheduleOptions) -> dict[str, Any] | None:
    """Give the moment and the payload, one of the handler `topic`, of a schedule; None for one that is left out.

    When its record is sent, a copy goes to the history topic, and a tombstone deletes the schedule from its topic.
    Raises DeadRecord.
    """
    due_at = read_epoch_seconds(_find_text(record, EPOCH), EPOCH)
    target = _find_text(record, TARGET_TOPIC)
    if not is_topic_name(target):
        raise DeadRecord("InvalidField", f"is {target[:60]!r}, which is no name of a topic; correct it", TARGET_TOPIC)

    if target == record.topic:
        flaw = "is the topic of the schedule, where its record would be a schedule again; name another topic"
        raise DeadRecord("InvalidField", flaw, TARGET_TOPIC)

    if options.due_since is not None and due_at < options.due_since:
        return None

    plans = [_to_tombstone(record)]
    if options.grace is None or due_at.timestamp() >= record.timestamp // 1000 - options.grace.total_seconds():
        own = find_own_headers(record)
        said = (TIMESTAMP, b"%d" % (record.timestamp // 1000)), (KEY, record.key), (TOPIC, record.topic.encode())
        sent = RecordPlan(target, None, _find_header(record, TARGET_KEY), record.value, (*own, *said))
        copies = [RecordPlan(options.history_topic, None, sent.key, sent.value, sent.headers)]
        plans = [sent, *(copies if options.history_topic else ()), *plans]

    return {"scheduled_at": due_at.isoformat(), "payload": to_payload(plans)}


def is_own_tombstone(record: Record, now: float) -> bool:
    """Whether a tombstone was written here a moment ago; its message is just ending, and must not be disturbed.

    One that is older counts: it stops a schedule that an installation without memory of it has read again.
    """
    names = {name for name, _ in record.headers}
    return ORIGIN in names and REPLAY_OF not in names and record.timestamp / 1000 > now - ENDING_SECONDS


def _to_tombstone(record: Record) -> RecordPlan:
    """Make what deletes a schedule once it is sent; it counts as the record after that, so it stops no newer one."""
    source, offset = find_origin(record)
    origin = f"{source}/{offset + 1}".encode()
    return RecordPlan(record.topic, record.partition, record.key, None, ((ORIGIN, origin),))


def _find_header(record: Record, name: str) -> bytes | None:
    """Give the first header of a name, as the scheduler does."""
    return next((value for found, value in record.headers if found == name), None)


def _find_text(record: Record, name: str) -> str:
    if (raw := _find_header(record, name)) is None:
        raise DeadRecord("MissingField", "is missing; every schedule needs this header", name)
    return read_text(raw, name)
