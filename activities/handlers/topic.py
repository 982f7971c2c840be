"""The `topic` handler: sends what a message holds to a Kafka topic when it is due, byte for byte."""

import base64
import binascii
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from activities.api.context import Context
from activities.api.handler import handler
from activities.api.outcome import Again, Done, Message, Reject, RetryAfter
from shared.errors import GiveUp, Misconfigured
from shared.kafka.connection import kafka_options
from shared.kafka.safe_producer import BrokerError, Headers, OutgoingRecord
from shared.kafka.topic_producer import PartitionMissing, RecordOffset, TopicProducer
from shared.settings import Settings

PATIENCE_SECONDS = 5.0  # for one record; four of them fit into the timeout
TIMEOUT = timedelta(seconds=20)
TROUBLE_DELAY = timedelta(seconds=30)  # until a message tries again while the broker is in trouble
IDEMPOTENCY_HEADER = "dormice-idempotency-key"
INHERITED = ("key", "value", "headers")
"""What a record under `then` has from the first one when it does not say otherwise."""

FIELDS = ("topic", *INHERITED, "partition")
UNKNOWN_TOPIC = "UnknownTopicOrPartitionError"  # Kafka counts it as passing, but a name that is wrong stays so
REFUSED = ("MessageSizeTooLargeError", "RecordListTooLargeError", "InvalidTopicError")

_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")


class RecordRefused(GiveUp):
    """A payload that no record can be made of."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """One record that a payload asks for; without a partition the key decides it."""

    topic: str
    partition: int | None = None
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()


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
    return f"topic:{name}" if is_topic_name(name) else ""


def is_topic_name(name: Any) -> bool:
    """Whether Kafka takes it as the name of a topic."""
    return isinstance(name, str) and _TOPIC.fullmatch(name) is not None


@handler("topic", lane="short", timeout=TIMEOUT, gate=find_topic_gate)
async def topic(message: Message, ctx: Context) -> Again | Done | Reject:
    """Send the record that the payload holds to a Kafka topic, key, value and headers as they are, and those after it.

    docs/handlers.md has the fields of its payload, and what becomes of a message that the broker does not take.
    """
    try:
        plans = read_plans(message.payload)
    except RecordRefused as exc:
        return Reject(str(exc))

    places: list[RecordOffset] = []
    for plan in plans:
        try:
            places.append(await _write(plan, ctx))
        except (BrokerError, Misconfigured, PartitionMissing) as exc:
            if places:  # what is written stays so: only the rest is tried again, and counts its own attempts
                return Again(after=TROUBLE_DELAY, payload=to_payload(plans[len(places) :]), reason=str(exc))
            return _refuse(exc, message)

    return Done({"topic": plans[0].topic, **places[0]._asdict()})


async def _write(plan: RecordPlan, ctx: Context) -> RecordOffset:
    headers = (*plan.headers, (IDEMPOTENCY_HEADER, ctx.idempotency_key.encode()))
    producer = await ctx.shared(open_producer)
    record = OutgoingRecord(plan.key, plan.value, headers)
    return await producer.write(plan.topic, plan.partition, record, ctx.due_at.isoformat())


def _refuse(exc: BrokerError | Misconfigured | PartitionMissing, message: Message) -> Reject:
    """Reject what can never be written; raises RetryAfter for what passes, and the error itself for the rest."""
    if isinstance(exc, PartitionMissing):
        return Reject(f"payload.partition: {exc}; correct it, or leave it out for that of the key")
    if isinstance(exc, BrokerError):
        if exc.name in REFUSED:
            return Reject(str(exc))
        if not exc.is_passing or exc.name == UNKNOWN_TOPIC:
            raise exc
    raise RetryAfter(TROUBLE_DELAY, str(exc), gate=find_topic_gate(message)) from exc


def read_plans(payload: Any) -> list[RecordPlan]:
    """Read a payload: its own record, and those that follow it; raises RecordRefused."""
    if not isinstance(payload, Mapping):
        raise RecordRefused('payload: is no object; write {"topic": …, "key": …, "value": …}')

    first = dict(cast("Mapping[str, Any]", payload))
    followers = first.pop("then", None)
    if not isinstance(followers, list | None):
        raise RecordRefused('payload.then: is no list; write [{"topic": …}, …]')

    plans = [_read_record(first, "payload")]
    inherited = {name: first[name] for name in INHERITED if name in first}

    for number, follower in enumerate(cast("list[Any]", followers or [])):
        if not isinstance(follower, Mapping):
            raise RecordRefused(f'payload.then[{number}]: is no object; write {{"topic": …}}')
        fields = {**inherited, **cast("Mapping[str, Any]", follower)}
        plans.append(_read_record(fields, f"payload.then[{number}]"))

    return plans


def to_payload(plans: Sequence[RecordPlan]) -> dict[str, Any]:
    """Give the payload that `read_plans` reads as these records, at least one."""
    first, *others = (_to_fields(plan) for plan in plans)
    followers = [
        {name: value for name, value in fields.items() if name not in INHERITED or value != first[name]}
        for fields in others
    ]
    payload = {name: value for name, value in first.items() if value not in (None, [])}
    return {**payload, "then": followers} if followers else payload


def _to_fields(plan: RecordPlan) -> dict[str, Any]:
    headers = [[name, _to_json(value)] for name, value in plan.headers]
    fields = {"topic": plan.topic, "key": _to_json(plan.key), "value": _to_json(plan.value), "headers": headers}
    return fields if plan.partition is None else {**fields, "partition": plan.partition}


def _to_json(raw: bytes | None) -> Any:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw or b"").decode()}


def _read_record(given: Mapping[str, Any], where: str) -> RecordPlan:
    if unknown := [name for name in given if name not in FIELDS]:
        raise RecordRefused(f"{where}.{unknown[0][:40]}: is not a field of a record; use {', '.join(FIELDS)}")
    name = given.get("topic")
    partition = given.get("partition")
    if not isinstance(name, str) or not is_topic_name(name):
        raise RecordRefused(f"{where}.topic: is no name of a topic; give 1 to 249 of letters, digits, '.', '_' and '-'")
    if partition is not None and (isinstance(partition, bool) or not isinstance(partition, int) or partition < 0):
        raise RecordRefused(f"{where}.partition: is {str(partition)[:40]}; give a whole number from 0, or leave it out")

    key, value = (_read_bytes(given.get(part), f"{where}.{part}") for part in ("key", "value"))
    return RecordPlan(name, partition, key, value, tuple(_read_headers(given.get("headers"), f"{where}.headers")))


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


def _read_headers(given: Any, where: str) -> Iterator[tuple[str, bytes | None]]:
    """Read headers: an object, or a list of pairs where names repeat or their order counts."""
    if given is None:
        return

    pairs: Any = [list(pair) for pair in cast("dict[str, Any]", given).items()] if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise RecordRefused(f'{where}: is no list; write {{"name": "value"}} or [["name", "value"], …]')
    for number, pair in enumerate(cast("list[Any]", pairs)):
        name, *values = cast("list[Any]", pair) if isinstance(pair, list) and pair else [None]
        if not isinstance(name, str) or len(values) != 1:
            raise RecordRefused(f'{where}[{number}]: is no pair; write ["name", "value"]')
        yield name, _read_bytes(values[0], f"{where}[{number}]")
