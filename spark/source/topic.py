"""Topics: the records of a Kafka topic between two moments or offsets, read in offset ranges by Spark's tasks.

The client and the settings are those of the bridge: Spark's own connector would need jars and a second set of options
for the same login.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.errors import GiveUp, RetryLater
from shared.kafka.connection import check_broker, kafka_options
from shared.kafka.safe_producer import list_topics, open_admin, open_reader, translate_errors
from shared.settings import Settings
from spark.tables import rows_of
from starter.records.record import Record, to_record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE_RECORDS = 250_000
POLL_RECORDS = 5000
POLL_MS = 1000
STALL_POLLS = 60  # polls without progress after which a task fails, so that Spark tries it again
Offsets = dict[str, int]  # by partition; Spark stores those of a stream as JSON, so the keys are text


class TopicOffsets(NamedTuple):
    """Each partition's first offset and its end, and the id of their topic, empty where the broker knows none."""

    begins: Offsets
    ends: Offsets
    topic_id: str


class OffsetRange(NamedTuple):
    """Offsets of one partition, from `begin` up to but not including `end`."""

    topic: str
    partition: int
    begin: int
    end: int


def open_ranges(
    spark: "SparkSession", settings: Settings, topic: str, since: datetime | None = None, until: datetime | None = None
) -> "DataFrame":
    """Give the present records of a topic as a frame of offset ranges, which `read_ranges` reads in the tasks.

    `since` and `until` are compared with the records' timestamps. Raises as `check_broker`, InvalidSetting and GiveUp.
    """
    begins, ends, _ = asyncio.run(find_offsets(settings, topic, since, until))
    ranges = [tuple(each) for each in cut_offsets(topic, begins, ends)]
    if not ranges:
        raise GiveUp(f"kafka:{topic}: holds no records between --since and --until; there is nothing to start")

    frame = spark.createDataFrame(ranges, "topic string, partition int, begin long, end long")  # pyright: ignore[reportUnknownMemberType] — also takes frames of pandas, which has no types
    return frame.repartition(len(ranges))  # one task each, so that no task waits for the records of another


def read_ranges(settings: Settings, batches: Iterable[Any]) -> Iterator[Record]:
    """Give the records of the offset ranges in a task's Arrow batches."""
    for cells in rows_of(batches):
        yield from read_range(settings, OffsetRange(*cells))


def cut_offsets(topic: str, begins: Offsets, ends: Offsets) -> Iterator[OffsetRange]:
    """Cut the offsets between two into offset ranges for tasks."""
    for number, end in ends.items():
        for begin in range(begins.get(number, 0), end, RANGE_RECORDS):
            yield OffsetRange(topic, int(number), begin, min(begin + RANGE_RECORDS, end))


async def find_offsets(
    settings: Settings, topic: str, since: datetime | None = None, until: datetime | None = None
) -> TopicOffsets:
    """Give each partition's first offset (from `since` on), and its end (before `until`); raises as `open_ranges`."""
    from shared.kafka.topic_ids import read_topic_ids  # noqa: PLC0415 — needs aiokafka, which not everybody installs

    await check_broker(settings)
    async with open_admin(kafka_options(settings), topic) as admin:
        topics = await list_topics(admin, topic, named_by="kafka")
        ids = await read_topic_ids(admin, [topic])
    async with translate_errors(topic), _open_consumer(settings) as consumer:
        partitions = [_partition(topic, number) for number in range(topics[topic])]
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        begins = begins if since is None else await _find_first(consumer, ends, since)
        lasts = ends if until is None else await _find_first(consumer, ends, until)
    firsts = {str(each.partition): begins[each] for each in partitions}
    return TopicOffsets(firsts, {str(each.partition): lasts[each] for each in partitions}, ids.get(topic, ""))


async def _find_first(consumer: Any, ends: dict[Any, int], moment: datetime) -> dict[Any, int]:
    """Give each partition's first offset from a moment on, or its end where there is none."""
    found = await consumer.offsets_for_times(dict.fromkeys(ends, round(moment.timestamp() * 1000)))
    return ends | {partition: answer.offset for partition, answer in found.items() if answer is not None}


def read_range(settings: Settings, offset_range: OffsetRange) -> Iterator[Record]:
    """Give the records of an offset range in their order; raises RetryLater when the broker stops sending them."""
    with asyncio.Runner() as runner:
        records = _read_range(settings, offset_range)
        try:
            while batch := runner.run(anext(records, None)):
                yield from batch
        finally:
            runner.run(records.aclose())


async def _read_range(settings: Settings, offset_range: OffsetRange) -> AsyncGenerator[list[Record]]:
    topic, number, begin, end = offset_range
    async with _open_consumer(settings) as consumer:
        partition = _partition(topic, number)
        consumer.assign([partition])
        consumer.seek(partition, begin)
        stalled = 0

        # the position also moves past compacted and uncommitted records, which are never returned
        while (position := await consumer.position(partition)) < end:
            found = await consumer.getmany(partition, timeout_ms=POLL_MS, max_records=POLL_RECORDS)
            records = [to_record(raw) for raw in found.get(partition, ()) if raw.offset < end]
            if records:
                yield records
            stalled = 0 if await consumer.position(partition) > position else stalled + 1
            if stalled >= STALL_POLLS:
                raise RetryLater(f"kafka:{topic}: partition {number} gives nothing beyond offset {position}; try again")


def _open_consumer(settings: Settings) -> AbstractAsyncContextManager[Any]:
    return open_reader(kafka_options(settings), auto_offset_reset="earliest", isolation_level="read_committed")


def _partition(topic: str, number: int) -> Any:
    return importlib.import_module("aiokafka").TopicPartition(topic, number)
