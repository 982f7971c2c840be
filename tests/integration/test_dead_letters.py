"""Dead letters on a real broker: kept as they came, replayed and dropped, whatever crashes in between."""

import asyncio
import contextlib
import dataclasses
import importlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from shared.kafka.safe_producer import BrokerError, OutgoingRecord, SafeProducer, list_topics, open_admin
from shared.kafka.topic_ids import read_topic_ids
from shared.settings import Settings
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.dead_letter_topic import DeadLetterTopic, LetterSelection, LetterState, TopicMissing, open_box
from starter.records.dead_letters import SUFFIX, DeadLetter, DeadLetterWriter, find_origin
from starter.records.record import Record
from tests.support.operations_pages import serve_page
from tests.support.topics import create_topic

pytestmark = pytest.mark.timeout(120)

_kafka: Any = importlib.import_module("aiokafka")
_admin: Any = importlib.import_module("aiokafka.admin")

EVERYTHING = LetterSelection()
LONG_AGO = 1_000_000_000_000


@pytest.fixture
def options(broker: EmbeddedBroker) -> dict[str, Any]:
    """What all clients share."""
    return {"bootstrap_servers": broker.address}


@pytest.fixture
async def topic(broker: EmbeddedBroker, message_id: Callable[[], str]) -> str:
    """A source topic of this test's own, with two partitions."""
    name = f"topic-{message_id()}"
    await create_topic(broker.address, name, partitions=2)
    return name


@pytest.fixture
async def writer(options: dict[str, Any]) -> AsyncIterator[DeadLetterWriter]:
    """A writer that gives up soon."""
    writer = DeadLetterWriter(options, patience_seconds=5)
    try:
        await writer.start()
        yield writer
    finally:
        await writer.stop()


def make(topic: str, offset: int, partition: int = 0, **changes: Any) -> Record:
    """Give a record as the bridge would have received it."""
    return Record(topic, partition, offset, LONG_AGO + offset, b"k%d" % offset, b"{")._replace(**changes)


async def lay(writer: DeadLetterWriter, *records: Record) -> None:
    """Write dead letters one after the other."""
    for record in records:
        await writer.write(record, "NotJson", "value: is no JSON; send one JSON document")


async def lay_at_last(writer: DeadLetterWriter, record: Record) -> None:
    """Write a dead letter, again after each failure, as the bridge does."""
    while True:
        with contextlib.suppress(BrokerError):
            return await lay(writer, record)


async def read(options: dict[str, Any], topic: str, partition: int = 0) -> list[Record]:
    """Read all that a partition holds."""
    consumer: Any = _kafka.AIOKafkaConsumer(**options)
    try:
        await consumer.start()
        place = _kafka.TopicPartition(topic, partition)
        end = (await consumer.end_offsets([place]))[place]
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        found: list[Record] = []
        while len(found) < end:
            raw = await consumer.getone()
            found.append(Record(topic, partition, raw.offset, raw.timestamp, raw.key, raw.value, tuple(raw.headers)))
        return found
    finally:
        await consumer.stop()


async def find(
    box: DeadLetterTopic, selection: LetterSelection = EVERYTHING, *, is_all: bool = False
) -> list[tuple[DeadLetter, LetterState]]:
    """Give what a box finds."""
    return [found async for found in box.find(selection, is_all=is_all)]


async def letters_of(box: DeadLetterTopic, selection: LetterSelection = EVERYTHING) -> list[DeadLetter]:
    """Give the letters that wait."""
    return [letter for letter, _ in await find(box, selection)]


def offsets(letters: list[DeadLetter]) -> list[int]:
    """Give the source offsets of letters."""
    return [letter.offset for letter in letters]


ODD: list[dict[str, Any]] = [
    {},
    {"key": None},
    {"value": None},
    {"key": None, "value": None},
    {"key": b"", "value": b"", "headers": (("a", None), ("a", b""), ("a", b"\xff"))},
    {"timestamp": int(time.time() * 1000) + 10**9},
    {"timestamp": 0},
    {"value": b"x" * 3_000_000},
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ",".join(odd) or "plain")
async def test_a_dead_letter_is_the_record_unchanged(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str, odd: dict[str, Any]
) -> None:
    """Key, value, headers and timestamp; null stays null, and what is too large or too early elsewhere fits here."""
    record = make(topic, 5, partition=1, **odd)
    await lay(writer, record)

    (letter,) = await read(options, topic + SUFFIX, partition=1)
    own = letter.headers[: len(record.headers)]
    assert (letter.key, letter.value, letter.timestamp, own) == (
        record.key,
        record.value,
        record.timestamp,
        record.headers,
    )


async def test_many_are_written_beside_each_other(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """Each once, those with neither key nor value as well."""
    records = [make(topic, i, key=None, value=b"{" if i % 20 else None) for i in range(400)]
    await asyncio.gather(*(lay(writer, record) for record in records))

    async with open_box(options, topic) as box:
        assert sorted(offsets(await letters_of(box))) == list(range(400))


async def test_a_missing_topic_is_made_like_its_source_and_keeps_for_good(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """As many partitions, no retention, whatever the broker's defaults are."""
    await lay(writer, make(topic, 0))

    async with open_admin(options) as admin:
        topics = await list_topics(admin)
        resource = _admin.config_resource.ConfigResource(
            _admin.config_resource.ConfigResourceType.TOPIC, topic + SUFFIX
        )
        (answer,) = await admin.describe_configs([resource])
    configs = {name: value for *_, entries in answer.resources for name, value, *_ in entries}
    assert topics[topic + SUFFIX] == 2
    assert (configs["retention.ms"], configs["retention.bytes"], configs["cleanup.policy"]) == ("-1", "-1", "delete")


async def test_one_that_the_broker_refuses_is_told_and_the_next_one_is_written(
    broker: EmbeddedBroker, options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """A topic of somebody else's making may be too narrow; an idempotent producer must not lose count over it."""
    await create_topic(broker.address, topic + SUFFIX, max_message_bytes=2_000)

    with pytest.raises(BrokerError) as told:
        await lay(writer, make(topic, 0, value=bytes(5_000)))
    await lay(writer, make(topic, 1), make(topic, 2, partition=1))

    assert str(told.value) == (f"topic {topic}{SUFFIX}: MessageSizeTooLargeError; raise max.message.bytes of the topic")
    async with open_box(options, topic) as box:
        assert offsets(await letters_of(box)) == [1, 2]


async def test_a_broker_that_is_away_is_told_and_the_same_letter_counts_once(
    broker: EmbeddedBroker, options: dict[str, Any], topic: str
) -> None:
    """What was given up may have been written all the same; the writer goes on when the broker is back."""
    writer = DeadLetterWriter(options, patience_seconds=2)
    await writer.start()
    try:
        await lay(writer, make(topic, 0))
        await broker.stop()
        with pytest.raises(BrokerError, match=rf"^topic {topic}{SUFFIX}: \w+; see whether the broker is well"):
            await lay(writer, make(topic, 1))
        await broker.start()
        await lay_at_last(writer, make(topic, 1))
        await lay_at_last(writer, make(topic, 1))
    finally:
        await writer.stop()

    async with open_box(options, topic) as box:
        assert offsets(await letters_of(box)) == [0, 1]


async def test_a_writer_without_a_broker_says_so_at_its_start() -> None:
    """Nothing is left open."""
    writer = DeadLetterWriter({"bootstrap_servers": "127.0.0.1:9"}, patience_seconds=5)
    with pytest.raises(BrokerError, match=r"^the Kafka broker: KafkaConnectionError; see whether"):
        await writer.start()
    await writer.stop()


async def test_a_replay_is_the_record_with_the_name_of_its_dead_letter(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """In its own partition, with its own headers, and of now: old ones are the first that retention takes."""
    before = int(time.time() * 1000)
    headers = (("trace", b"1"), ("trace", None))
    await lay(writer, make(topic, 7, partition=1, headers=headers), make(topic, 8, partition=1, key=None, value=None))

    async with open_box(options, topic) as box:
        await box.replay(await letters_of(box))
        waiting = await letters_of(box)

    first, second = await read(options, topic, partition=1)
    assert (first.key, first.value) == (b"k7", b"{")
    assert first.headers == (
        *headers,
        ("dormice.replay-of", f"{topic}{SUFFIX}/1/0".encode()),
        ("dormice.origin", f"{topic}/1/7".encode()),
        ("dormice.attempts", b"1"),
    )
    assert first.timestamp >= before
    assert (second.key, second.value) == (None, None)
    assert waiting == []


async def test_a_replay_counts_in_the_topic_that_it_came_from(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """Its origin has the topic's id; what comes from an older topic of this name is not sent to the new one."""
    async with open_admin(options) as admin:
        ids = await read_topic_ids(admin, [topic])
    await lay(writer, make(topic, 7, topic_id=ids[topic]))
    async with open_box(options, topic) as box:
        await box.replay(await letters_of(box))
    (replay,) = await read(options, topic)
    again = replay._replace(topic_id=ids[topic])
    await lay(writer, make(topic, 8, topic_id="of-older"))

    async with open_box(options, topic) as box:
        with pytest.raises(TopicMissing, match=f"^dead letter 0/2: its topic '{topic}' was deleted and made again, so"):
            await box.replay(await letters_of(box))

    assert find_origin(again) == (f"{topic}@{ids[topic]}/0", 7)
    assert dict(replay.headers)["dormice.origin"] == f"{topic}@{ids[topic]}/0/7".encode()
    assert len(await read(options, topic)) == 1


async def test_a_replay_that_fails_again_comes_back_with_its_count_raised(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """And its own headers still."""
    await lay(writer, make(topic, 7, headers=(("trace", b"1"),)))
    for attempts in (1, 2, 3):
        async with open_box(options, topic) as box:
            (letter,) = await letters_of(box)
            assert (letter.attempts, letter.headers) == (attempts, (("trace", b"1"),))
            await box.replay([letter])
        await lay(writer, (await read(options, topic))[-1])


async def test_a_crash_between_replay_and_mark_replays_the_same_name_and_one_failure(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """Both records name one dead letter, so that the second one has no effect; if both fail, that is one letter."""
    await lay(writer, make(topic, 7))
    outlet = SafeProducer(options)
    try:
        async with open_box(options, topic) as box:
            (letter,) = await letters_of(box)
            sendable = OutgoingRecord(letter.record.key, letter.record.value, letter.replay_headers)
            await outlet.send(letter.topic, letter.partition, sendable)  # and nobody marks it
            await box.replay(await letters_of(box))

            first, second = await read(options, topic)
            await lay(writer, first, second)
            found = await find(box, is_all=True)
    finally:
        await outlet.stop()

    assert first.headers == second.headers
    assert [(x.attempts, state) for x, state in found] == [(1, "replayed"), (2, "waiting"), (2, "copy")]


async def test_what_is_handled_stays_so_for_every_reader(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """A copy that a redelivery adds later is handled with the first one."""
    records = [make(topic, offset) for offset in range(4)]
    await lay(writer, *records)
    async with open_box(options, topic) as box:
        letters = await letters_of(box)
        await box.drop(letters[:1])
        await box.replay(letters[1:2])
    await lay(writer, records[0], records[1])

    async with open_box(options, topic) as other:
        assert offsets(await letters_of(other)) == [2, 3]
        found = await find(other, is_all=True)
    assert [(x.offset, state) for x, state in found] == [
        (0, "dropped"),
        (1, "replayed"),
        (2, "waiting"),
        (3, "waiting"),
        (0, "copy"),
        (1, "copy"),
    ]
    assert len(await read(options, topic)) == 1


async def test_letters_are_found_by_what_they_are(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """By partition and offset, of both partitions."""
    await lay(writer, make(topic, 0), make(topic, 1), make(topic, 2, partition=1))
    await writer.write(make(topic, 3, partition=1), "Refused", "the pack is full")

    async with open_box(options, topic) as box:
        assert offsets(await letters_of(box)) == [0, 1, 2, 3]
        assert offsets(await letters_of(box, LetterSelection(partition=1))) == [2, 3]
        assert offsets(await letters_of(box, LetterSelection(error_class="Refused"))) == [3]
        assert offsets(await letters_of(box, LetterSelection(key=b"k1"))) == [1]
        moment = datetime.fromtimestamp((LONG_AGO + 2) / 1000, UTC)
        assert offsets(await letters_of(box, LetterSelection(since=moment))) == [2, 3]
        (refused,) = await letters_of(box, LetterSelection(error_class="Refused"))
    assert refused.stage == "deliver"


async def test_a_record_that_is_no_dead_letter_is_passed_over(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """And counted."""
    await lay(writer, make(topic, 0))
    outlet = SafeProducer(options)
    try:
        await outlet.send(topic + SUFFIX, 0, OutgoingRecord(b"somebody", b"else's", ()))
    finally:
        await outlet.stop()

    async with open_box(options, topic) as box:
        assert offsets(await letters_of(box)) == [0]
        assert box.foreign == 1


async def test_a_topic_without_dead_letters_is_an_empty_box_and_a_mistyped_one_an_error(
    options: dict[str, Any], topic: str
) -> None:
    """Neither makes a topic."""
    async with open_box(options, topic) as box:
        assert await letters_of(box) == []
    with pytest.raises(TopicMissing, match=rf"^TOPIC: there is no topic '{topic}x', nor dead letters of it"):
        async with open_box(options, f"{topic}x"):
            pass
    async with open_admin(options) as admin:
        assert {topic + SUFFIX, f"{topic}x"}.isdisjoint(await list_topics(admin))


async def test_a_letter_whose_topic_is_gone_says_so(
    options: dict[str, Any], writer: DeadLetterWriter, topic: str
) -> None:
    """It waits until the topic is there again, or it is dropped."""
    await lay(writer, make(topic, 0))
    async with open_admin(options) as admin:
        await admin.delete_topics([topic])

    async with open_box(options, topic) as box:
        letters = await letters_of(box)
        with pytest.raises(TopicMissing, match=rf"^dead letter 0/0: its topic '{topic}' is gone; make it again"):
            await box.replay(letters)
        assert offsets(await letters_of(box)) == [0]
        await box.drop(letters)
        assert await letters_of(box) == []


async def test_the_operations_page_lists_letters_and_handles_those_that_a_person_confirms(
    broker: EmbeddedBroker, client: Client, settings: Settings, writer: DeadLetterWriter, topic: str
) -> None:
    """By topic and class, counted before; a replay and a drop leave what the command line would find."""
    await lay(writer, make(topic, 0), make(topic, 1, value=b"<b>"), make(topic, 2))
    await writer.write(make(topic, 3), "<i>Odd</i>", "it is odd")
    changed = dataclasses.replace(settings, page_writes=True, kafka_servers=broker.address)
    async with (
        serve_page(client, changed) as served,
        httpx.AsyncClient(base_url=served.address, timeout=60, follow_redirects=True) as browser,
    ):
        await browser.post("/sign-in", data={"token": served.page.token})
        topics = await browser.get("/dead-letters")
        listed = await browser.get("/dead-letters", params={"topic": topic})
        asked = await browser.get("/dead-letters/replay", params={"topic": topic, "error_class": "NotJson"})
        replayed = await browser.post("/dead-letters/replay", data={"topic": topic, "error_class": "NotJson"})
        dropped = await browser.post("/dead-letters/drop", data={"topic": topic})
        empty = await browser.get("/dead-letters", params={"topic": topic})
        nameless = await browser.post("/dead-letters/drop", data={"error_class": "NotJson"})
        strange = await browser.get("/dead-letters", params={"topic": f"{topic}-strange"})

    async with open_box({"bootstrap_servers": broker.address}, topic) as box:
        states = Counter(state for _, state in await find(box, is_all=True))
    assert f">{topic}</a>" in topics.text
    assert "&lt;i&gt;Odd&lt;/i&gt;" in listed.text
    assert "<i>" not in listed.text
    assert "3 dead letters of topic" in asked.text
    assert "3 sent" in replayed.text
    assert "1 sent" in dropped.text
    assert "No dead letter waits." in empty.text
    assert nameless.status_code == 400
    assert "there is no topic" in strange.text
    assert states == {LetterState.REPLAYED: 3, LetterState.DROPPED: 1}
