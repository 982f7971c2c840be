"""The lag of a group on a real broker, of which no bridge knows."""

import importlib
import time
from typing import Any

import pytest

from shared.errors import InvalidSetting
from starter.bridge.group_lag import read_group_lag
from starter.local.kafka.broker import EmbeddedBroker
from tests.support.topics import commit, create_topic

_kafka: Any = importlib.import_module("aiokafka")

MINUTE = 60_000
PARTITIONS = 4


@pytest.fixture
async def topic(broker: EmbeddedBroker, kind: str) -> str:
    """Five records of a minute ago in partitions 0, 1 and 3, none in 2; the last of 3 were never committed."""
    await create_topic(broker.address, kind, PARTITIONS)
    producer = _kafka.AIOKafkaProducer(bootstrap_servers=broker.address, transactional_id=kind)
    ago = round(time.time() * 1000) - MINUTE
    await producer.start()

    try:
        async with producer.transaction():
            for number in range(5):
                for partition in (0, 1):
                    await producer.send_and_wait(kind, b"%d" % number, partition=partition, timestamp_ms=ago)
        await producer.begin_transaction()
        await producer.send_and_wait(kind, b"never", partition=3, timestamp_ms=ago)
        await producer.abort_transaction()
    finally:
        await producer.stop()

    return kind


async def test_lag_is_counted_from_what_is_committed_to_what_can_be_had(broker: EmbeddedBroker, topic: str) -> None:
    """Where nothing is committed from the beginning; markers alone count and make nothing late."""
    await commit(broker.address, topic, topic, {0: 3, 3: 0})
    found = await read_group_lag({"bootstrap_servers": broker.address}, topic, [topic, topic])

    counted = [(each.number, each.committed, each.end, each.lag, each.member) for each in found.partitions]
    assert counted == [(0, 3, 6, 3, ""), (1, None, 6, 6, ""), (2, None, 0, 0, ""), (3, 0, 2, 2, "")]
    assert [each.time_lag_seconds >= 60 for each in found.partitions] == [True, True, False, False]
    assert [each.time_lag_seconds for each in found.partitions[2:]] == [0, 0]
    assert (found.state, found.lag) == ("Empty", 11)


async def test_what_is_not_there_is_named(broker: EmbeddedBroker, topic: str) -> None:
    """A mistyped topic or group is no lag of 0."""
    options = {"bootstrap_servers": broker.address}
    with pytest.raises(InvalidSetting, match=f"^TOPIC: there is no topic '{topic}x', or this user may not see it;"):
        await read_group_lag(options, topic, [topic, f"{topic}x"])
    with pytest.raises(InvalidSetting, match=f"^--group: there is no consumer group '{topic}'; start its bridge,"):
        await read_group_lag(options, topic, [topic])
