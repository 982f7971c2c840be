"""Topics: the records of a Kafka topic between two moments or offsets, read in offset ranges by Spark's tasks.

The client and the settings are those of the bridge: Spark's own connector would need jars and a second set of options
for the same login.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.errors import GiveUp, InvalidSetting, RetryLater
from shared.kafka.connection import check_broker, kafka_options
from shared.kafka.safe_producer import list_topics, open_admin, translate_errors
from shared.settings import Settings
from starter.records.record import Record, to_record

PIECE_RECORDS = 250_000
POLL_RECORDS = 5000
POLL_MS = 1000
STALL_POLLS = 60
"""Polls without progress after which a task fails, so that Spark tries it again."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of one partition, from `begin` up to but not including `end`."""

    topic: str
    partition: int
    begin: int
    end: int


def find_pieces(settings: Settings, topic: str, since: datetime | None, until: datetime | None) -> list[OffsetRange]:
    """Give the present records of a topic, as offset ranges for tasks; raises InvalidSetting for a missing topic.

    `since` and `until` are compared with the records' timestamps. Raises GiveUp when no record lies between them, and
    what `check_broker` raises.
    """
    ranges = asyncio.run(_find_pieces(settings, topic, since, until))
    if not ranges:
        raise GiveUp(f"kafka:{topic}: holds no records between --since and --until; there is nothing to start")
    return ranges


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The first offset of a partition that exists, and the first that does not exist yet."""

    begin: int
    end: int


def find_bounds(settings: Settings, topic: str) -> dict[int, Watermarks]:
    """Give the present bounds of each partition of a topic; raises InvalidSetting for a missing topic."""
    return asyncio.run(_find_bounds(settings, topic))


async def _find_bounds(settings: Settings, topic: str) -> dict[int, Watermarks]:
    async with _open_topic(settings, topic) as (consumer, partitions):
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return {each.partition: Watermarks(begins[each], ends[each]) for each in partitions}


def cut_pieces(topic: str, partition: int, begin: int, end: int) -> Iterator[OffsetRange]:
    """Cut offsets of a partition into offset ranges for tasks."""
    for start in range(begin, end, PIECE_RECORDS):
        yield OffsetRange(topic, partition, start, min(start + PIECE_RECORDS, end))


@asynccontextmanager
async def _open_topic(settings: Settings, topic: str) -> AsyncGenerator[tuple[Any, list[Any]]]:
    await check_broker(settings)
    async with translate_errors(topic), open_admin(kafka_options(settings)) as admin:
        topics = await list_topics(admin)
    if topic not in topics:
        raise InvalidSetting(f"kafka: there is no topic {topic!r}, or this user may not see it; create or allow it")
    async with translate_errors(topic), _open_consumer(settings) as consumer:
        yield consumer, [_partition(topic, number) for number in range(topics[topic])]


async def _find_pieces(
    settings: Settings, topic: str, since: datetime | None, until: datetime | None
) -> list[OffsetRange]:
    async with _open_topic(settings, topic) as (consumer, partitions):
        begins, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
        firsts, lasts = [await _find_offsets(consumer, partitions, moment) for moment in (since, until)]
    ranges: list[OffsetRange] = []
    for partition in partitions:
        end: int = lasts[partition] if partition in lasts else ends[partition]
        begin: int = firsts[partition] if partition in firsts else begins[partition] if since is None else end
        ranges += cut_pieces(topic, partition.partition, begin, end)
    return ranges


async def _find_offsets(consumer: Any, partitions: list[Any], moment: datetime | None) -> dict[Any, int]:
    """Give each partition's first offset from a moment on; partitions without such a record are left out."""
    if moment is None:
        return {}
    at = round(moment.timestamp() * 1000)
    found = await consumer.offsets_for_times(dict.fromkeys(partitions, at))
    return {partition: answer.offset for partition, answer in found.items() if answer is not None}


def read_piece(settings: Settings, offset_range: OffsetRange) -> Iterator[Record]:
    """Give the records of an offset range in their order; raises RetryLater when the broker stops sending them."""
    with asyncio.Runner() as runner:
        records = _read_piece(settings, offset_range)
        try:
            while batch := runner.run(anext(records, None)):
                yield from batch
        finally:
            runner.run(records.aclose())


async def _read_piece(settings: Settings, offset_range: OffsetRange) -> AsyncGenerator[list[Record]]:
    async with _open_consumer(settings) as consumer:
        partition = _partition(offset_range.topic, offset_range.partition)
        consumer.assign([partition])
        consumer.seek(partition, offset_range.begin)
        stalled = 0
        # the position also moves past compacted and uncommitted records, which are never returned
        while (position := await consumer.position(partition)) < offset_range.end:
            found = await consumer.getmany(partition, timeout_ms=POLL_MS, max_records=POLL_RECORDS)
            records = [to_record(raw) for raw in found.get(partition, ()) if raw.offset < offset_range.end]
            if records:
                yield records
            stalled = 0 if await consumer.position(partition) > position else stalled + 1
            if stalled >= STALL_POLLS:
                raise RetryLater(
                    f"kafka:{offset_range.topic}: partition {offset_range.partition} gives nothing beyond "
                    f"offset {position}; try again"
                )


@asynccontextmanager
async def _open_consumer(settings: Settings) -> AsyncGenerator[Any]:
    options = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer: Any = importlib.import_module("aiokafka").AIOKafkaConsumer(**kafka_options(settings), **options)
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def _partition(topic: str, number: int) -> Any:
    return importlib.import_module("aiokafka").TopicPartition(topic, number)
