"""Records of a real topic as a stream: what is read when, and the error for a checkpoint that is too old or too new."""

import asyncio
import importlib
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from shared.errors import GiveUp, InvalidSetting
from shared.kafka.safe_producer import open_admin
from spark.source.topic_stream import TopicStreamReader, advance, to_offsets
from starter.local.kafka.broker import EmbeddedBroker
from tests.support.topics import create_topic, make_again, produce_keys

RECORDS = 30


@pytest.fixture
async def topic(broker: EmbeddedBroker, message_id: Callable[[], str]) -> str:
    """A topic of two partitions with thirty records."""
    name = message_id()
    await create_topic(broker.address, name, 2)
    await produce_keys(broker.address, name, [f"k{number}" for number in range(RECORDS)])
    return name


@pytest.fixture
def reader(broker: EmbeddedBroker, topic: str) -> Callable[..., TopicStreamReader]:
    """Make what Spark asks."""

    def make(**options: str) -> TopicStreamReader:
        return TopicStreamReader({"topic": topic, "kafkaServers": broker.address, **options})

    return make


async def ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """Ask as Spark does: from a thread where no event loop runs."""
    return await asyncio.to_thread(question, *arguments)


async def test_all_records_are_read_once_in_bounded_batches(reader: Callable[..., TopicStreamReader]) -> None:
    """From the first one on, with all that a record has, until nothing is left."""
    stream = reader(maxRecords="12")
    keys = list[str]()
    start = await ask(stream.initialOffset)
    limit = stream.getDefaultReadLimit()
    while (end := await ask(stream.latestOffset, start, limit)) != start:
        rows = [row for part in stream.partitions(start, end) for row in await ask(list, stream.read(part))]
        assert len(rows) <= 12
        keys += [row[4].decode() for row in rows]
        start = end

    assert limit == ReadMaxRows(12)
    assert sorted(keys) == sorted(f"k{number}" for number in range(RECORDS))


async def test_a_stream_from_the_latest_offset_on_sees_what_comes_next(
    reader: Callable[..., TopicStreamReader], broker: EmbeddedBroker, topic: str
) -> None:
    """Nothing that was there before."""
    stream = reader(startingOffsets="latest")
    start = await ask(stream.initialOffset)
    await produce_keys(broker.address, topic, ["new"])
    end = await ask(stream.latestOffset, start, ReadAllAvailable())

    rows = [row for part in stream.partitions(start, end) for row in await ask(list, stream.read(part))]
    assert [row[4] for row in rows] == [b"new"]


async def test_what_is_available_now_is_a_bound(
    reader: Callable[..., TopicStreamReader], broker: EmbeddedBroker, topic: str
) -> None:
    """Records that come after such a query has begun are left for the next one."""
    stream = reader()
    start = await ask(stream.initialOffset)
    await ask(stream.prepareForTriggerAvailableNow)
    await produce_keys(broker.address, topic, ["late"])

    assert sum(to_offsets(await ask(stream.latestOffset, start, ReadAllAvailable())).values()) == RECORDS


async def test_records_deleted_unread_end_the_query_with_a_sentence(
    reader: Callable[..., TopicStreamReader], broker: EmbeddedBroker, topic: str
) -> None:
    """They are not passed over in silence; nor is a topic that was made anew under the same name."""
    admin: Any = importlib.import_module("aiokafka.admin")
    partition: Any = importlib.import_module("aiokafka").TopicPartition(topic, 0)
    async with open_admin({"bootstrap_servers": broker.address}) as client:
        await client.delete_records({partition: admin.RecordsToDelete(before_offset=3)})
    stream = reader()

    with pytest.raises(GiveUp, match="records 1 to 2 of partition 0 were deleted before they were read"):
        await ask(stream.latestOffset, {"0": 1, "1": 0}, ReadAllAvailable())
    with pytest.raises(GiveUp, match="partition 1 does not reach offset 4000, where the checkpoint is"):
        await ask(stream.latestOffset, {"0": 3, "1": 4000}, ReadAllAvailable())


async def test_a_topic_that_was_made_again_ends_the_query_with_a_sentence(
    reader: Callable[..., TopicStreamReader], broker: EmbeddedBroker, topic: str
) -> None:
    """Also where it has as many records again, so that no offset shows it."""
    stream = reader()
    start = await ask(stream.initialOffset)
    end = await ask(stream.latestOffset, start, ReadAllAvailable())
    await make_again(broker.address, topic, 2)
    await produce_keys(broker.address, topic, [f"k{number}" for number in range(RECORDS + 1)])

    with pytest.raises(GiveUp, match=f"^topic {topic}: was deleted and made again since the checkpoint was written;"):
        await ask(stream.latestOffset, end, ReadAllAvailable())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topic": ""}, "topic: is missing; name a Kafka topic"),
        ({"startingOffsets": "12"}, "startingOffsets: is '12'; write earliest or latest"),
        ({"maxRecords": "-1"}, "maxRecords: is '-1'; give a whole number of at least 1"),
        (
            {"subscribe": "t"},
            "subscribe: there is no such option; known: kafkaServers, maxRecords, startingOffsets, topic",
        ),
    ],
)
def test_wrong_options_are_told(
    reader: Callable[..., TopicStreamReader], options: dict[str, str], sentence: str
) -> None:
    """One sentence each, when the stream is made."""
    with pytest.raises(InvalidSetting) as told:
        reader(**options)

    assert str(told.value) == sentence


async def test_a_topic_that_is_not_there_is_told(reader: Callable[..., TopicStreamReader]) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidSetting, match="there is no topic 'nowhere'"):
        await ask(reader(topic="nowhere").initialOffset)


def test_partitions_share_what_a_batch_may_hold() -> None:
    """Those with little leave their share to the others, and all is reached in the end."""
    begins = {"0": 0, "1": 5, "2": 7}
    ends = {"0": 100, "1": 6, "2": 7}

    assert advance(begins, ends, 11) == {"0": 10, "1": 6, "2": 7}
    assert advance(begins, ends, None) == ends
    assert advance(begins, ends, 1) == {"0": 0, "1": 6, "2": 7}
