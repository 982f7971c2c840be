"""The topic reader: all records that a topic has at the moment, without a consumer group."""

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shared.kafka.safe_producer import (
    PATIENCE_SECONDS,
    BrokerError,
    list_topics,
    open_admin,
    open_reader,
    translate_errors,
)
from starter.records.record import Record, to_record

POLL_MILLISECONDS = 1_000


async def read_topic(options: Mapping[str, Any], topic: str) -> AsyncIterator[Record]:
    """Give each record that a topic has now, by partition and offset; raises InvalidSetting and BrokerError."""
    async with open_admin(options) as admin:
        topics = await list_topics(admin, topic)
    async with open_reader(options) as consumer:
        async for record in read_until(consumer, await find_ends(consumer, topic, topics[topic])):
            yield record


async def find_ends(consumer: Any, topic: str, partitions: int) -> dict[Any, int]:
    """Give the present end of each partition of a topic; raises BrokerError."""
    made: Any = importlib.import_module("aiokafka").TopicPartition
    named = [made(topic, number) for number in range(partitions)]
    if not named:
        return {}
    async with translate_errors(topic), asyncio.timeout(PATIENCE_SECONDS):
        ends = await consumer.end_offsets(named)
    return {partition: ends[partition] for partition in named}


async def read_until(consumer: Any, ends: Mapping[Any, int]) -> AsyncIterator[Record]:
    """Give the records of some partitions from their beginnings to their ends; raises BrokerError."""
    for partition, end in ends.items():
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        read_at = time.monotonic()

        while await _find_position(consumer, partition) < end:
            async with translate_errors(partition.topic):
                polled = await consumer.getmany(partition, timeout_ms=POLL_MILLISECONDS)
            for raw in polled.get(partition, ()):
                if raw.offset < end:
                    yield to_record(raw)
            if polled:
                read_at = time.monotonic()
            elif time.monotonic() - read_at > PATIENCE_SECONDS:
                raise BrokerError(partition.topic, TimeoutError())


async def _find_position(consumer: Any, partition: Any) -> int:
    async with translate_errors(partition.topic), asyncio.timeout(PATIENCE_SECONDS):
        return await consumer.position(partition)
