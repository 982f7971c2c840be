"""The `topic` handler: sends what a message holds to a Kafka topic when it is due, byte for byte."""

import base64
import binascii
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Done, Message, Reject, RetryAfter
from shared.errors import GiveUp, Misconfigured
from shared.kafka.connection import kafka_options
from shared.kafka.safe_producer import BrokerError, Headers, OutgoingRecord
from shared.kafka.topic_producer import PartitionMissing, TopicProducer
from shared.settings import Settings

PATIENCE_SECONDS = 5.0  # for one record; less than the ten seconds that a handler has on the short lane
TROUBLE_DELAY = timedelta(seconds=30)  # until a message tries again while the broker is in trouble
IDEMPOTENCY_HEADER = "dormice-idempotency-key"
FIELDS = ("topic", "key", "value", "headers", "partition")
UNKNOWN_TOPIC = "UnknownTopicOrPartitionError"  # Kafka counts it as passing, but a name that is wrong stays so
REFUSED = ("MessageSizeTooLargeError", "RecordListTooLargeError", "InvalidTopicError")

_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class RecordRefused(GiveUp):
    """A payload that no record can be made of."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """What a payload asks for; without a partition the key decides it."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


@asynccontextmanager
async def open_producer(settings: Settings) -> AsyncGenerator[TopicProducer]:
    """Open the one producer of the process; it connects with the first record. Raises Misconfigured."""
    producer = TopicProducer(kafka_options(settings), PATIENCE_SECONDS)
    try:
        yield producer
    finally:
        await producer.stop()


def find_topic_gate(message: Message) -> str:
    """Name the gate of a topic, which closes while the broker does not take its records; "" for an invalid payload."""
    given: Any = message.payload
    name: Any = cast("dict[str, Any]", given).get("topic") if isinstance(given, dict) else None
    return f"topic:{name}" if isinstance(name, str) and _TOPIC.fullmatch(name) else ""


@handler("topic", lane="short", gate=find_topic_gate)
async def topic(message: Message, ctx: Context) -> Done | Reject:
    """Send the record that the payload holds to a Kafka topic, key, value and headers as they are.

    docs/handlers.md has the fields of its payload, and what becomes of a message that the broker does not take.
    """
    try:
        plan = read_record(message.payload)
    except RecordRefused as exc:
        return Reject(str(exc))
    headers = (*plan.headers, (IDEMPOTENCY_HEADER, ctx.idempotency_key.encode()))
    record = OutgoingRecord(plan.key, plan.value, headers)
    try:
        producer = await ctx.shared(open_producer)
        place = await producer.write(plan.topic, plan.partition, record, ctx.due_at.isoformat())
    except PartitionMissing as exc:
        return Reject(f"payload.partition: {exc}; correct it, or leave it out for that of the key")
    except Misconfigured as exc:
        raise RetryAfter(TROUBLE_DELAY, str(exc), gate=find_topic_gate(message)) from exc
    except BrokerError as exc:
        if exc.name in REFUSED:
            return Reject(str(exc))
        if not exc.is_passing or exc.name == UNKNOWN_TOPIC:
            raise
        raise RetryAfter(TROUBLE_DELAY, str(exc), gate=find_topic_gate(message)) from exc
    return Done({"topic": plan.topic, "partition": place.partition, "offset": place.offset})


def read_record(payload: Any) -> RecordPlan:
    """Read a payload; raises RecordRefused."""
    if not isinstance(payload, Mapping):
        raise RecordRefused('payload: is no object; write {"topic": …, "key": …, "value": …}')
    given = cast("Mapping[str, Any]", payload)
    if unknown := [name for name in given if name not in FIELDS]:
        raise RecordRefused(f"payload.{unknown[0][:40]}: is not a field of a record; use {', '.join(FIELDS)}")
    name, partition = given.get("topic"), given.get("partition")
    if not isinstance(name, str) or not _TOPIC.fullmatch(name):
        raise RecordRefused("payload.topic: is no name of a topic; give 1 to 249 of letters, digits, '.', '_' and '-'")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int) or partition < 0):
        raise RecordRefused(f"payload.partition: is {str(partition)[:40]}; give a whole number from 0, or leave it out")
    key, value = (_read_bytes(given.get(part), f"payload.{part}") for part in ("key", "value"))
    return RecordPlan(name, partition, key, value, tuple(_read_headers(given.get("headers"))))


def _read_bytes(value: Any, where: str) -> bytes | None:
    """Read text, or base64 of what is no text; None is Kafka's null."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Mapping):
        encoded = cast("Mapping[str, Any]", value)
        if list(encoded) == ["base64"] and isinstance(encoded["base64"], str):
            try:
                return base64.b64decode(encoded["base64"], validate=True)
            except (binascii.Error, ValueError) as exc:
                raise RecordRefused(f"{where}.base64: is no Base64 ({exc}); correct it") from exc
    raise RecordRefused(f'{where}: is neither text nor bytes; write a string, {{"base64": "…"}} or null')


def _read_headers(given: Any) -> list[tuple[str, bytes | None]]:
    """Read headers: an object, or a list of pairs where names repeat or their order counts."""
    if given is None:
        return []
    pairs: Any = [list(pair) for pair in cast("dict[str, Any]", given).items()] if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise RecordRefused('payload.headers: is no list; write {"name": "value"} or [["name", "value"], …]')
    headers: list[tuple[str, bytes | None]] = []
    for number, pair in enumerate(cast("list[Any]", pairs)):
        name, *values = cast("list[Any]", pair) if isinstance(pair, list) and pair else [None]
        if not isinstance(name, str) or len(values) != 1:
            raise RecordRefused(f'payload.headers[{number}]: is no pair; write ["name", "value"]')
        headers.append((name, _read_bytes(values[0], f"payload.headers[{number}]")))
    return headers
