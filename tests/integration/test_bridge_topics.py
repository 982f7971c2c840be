"""The bridge on topics that are not as simple as most: compacted ones, and dead letters that nobody takes."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from shared.messages.encoding import Pack
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.intake.bridge.bridge import Bridge
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.dead_letter_topic import LetterSelection, open_box
from starter.records.dead_letters import SUFFIX
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.starting.bulk import BulkStarter
from tests.bridges import run_bridge
from tests.conftest import Serve, wait_until
from tests.records import producing
from tests.subjects import declare
from tests.topics import committed_lag, configure_topic, create_topic, read_progress, read_records

PARTITIONS = 3
PACK = Pack(packs=10, size=1000, coalesce=timedelta(0))
COMPACTED: dict[str, Any] = {"cleanup_policy": "compact", "segment_ms": 500, "min_cleanable_dirty_ratio": 0.01}
Bridging = Callable[[], AbstractAsyncContextManager[Bridge]]


@pytest.fixture
async def seen(serve: Serve, kind: str) -> AsyncIterator[dict[str, Any]]:
    """The newest payload by id of what ran, while a worker is at work."""
    seen: dict[str, Any] = {}

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        seen[message.id] = message.payload
        return Again(after=timedelta(days=1))

    async with serve(work, lanes=("short",)):
        yield seen


@pytest.fixture
def bridging(client: Client, settings: Settings, broker: EmbeddedBroker, kind: str, encoding: str) -> Bridging:
    """Run a bridge on the topic of the test's kind: the key is the id, the value the payload."""

    def bridging() -> AbstractAsyncContextManager[Bridge]:
        starter = BulkStarter(client, settings, encodings=declare(encoding, kind, PACK), revises=True)
        formats = Formats(FormatOptions.read(kind=kind, id_from="key"), EnvelopeRules({kind: "short"}))
        return run_bridge(starter, broker.address, kind, formats)

    return bridging


async def test_dead_letters_that_nobody_takes_hold_up_their_partition_alone(
    bridging: Bridging, broker: EmbeddedBroker, seen: dict[str, Any], kind: str
) -> None:
    """Nothing is skipped there, the others go on; once the topic takes them again, so does the partition."""
    await create_topic(broker.address, kind, PARTITIONS)
    await create_topic(broker.address, kind + SUFFIX, PARTITIONS, max_message_bytes=100)
    numbers = range(PARTITIONS)
    async with producing(broker.address) as producer, bridging() as bridge:
        await producer.send_and_wait(kind, b"{", key=b"poison", partition=0)
        await wait_until(lambda: bridge.intake.blocked, "its dead letter is refused")
        for number in numbers:
            await producer.send_and_wait(kind, b"1", key=b"k%d" % number, partition=number)
        await wait_until(lambda: len(seen) == PARTITIONS - 1, "the other partitions go on")

        async def progress() -> list[int]:
            return [x.committed for x in await read_progress(broker.address, kind, f"group-{kind}", PARTITIONS)]

        await wait_until(lambda: _equals(progress, [0, 1, 1]), "only theirs is committed")
        meanwhile, blocked = dict(seen), [*bridge.intake.blocked]
        await configure_topic(broker.address, kind + SUFFIX, max_message_bytes=1_000_000)
        await wait_until(lambda: len(seen) == PARTITIONS, "it goes on by itself")
        await wait_until(lambda: _equals(progress, [2, 1, 1]), "nothing is left")
    async with open_box({"bootstrap_servers": broker.address}, kind) as box:
        letters = [letter async for letter, _ in box.find(LetterSelection())]

    assert blocked == [(kind, 0)]
    assert meanwhile == {"k1": 1, "k2": 1}
    assert [(letter.record.key, letter.error_class) for letter in letters] == [(b"poison", "NotJson")]


async def _equals(ask: Callable[[], Awaitable[Any]], expected: Any) -> bool:
    return await ask() == expected


async def test_a_compacted_topic_is_read_to_its_end(
    bridging: Bridging, broker: EmbeddedBroker, seen: dict[str, Any], kind: str
) -> None:
    """Offsets that compaction has taken away hold up nothing; every key ends with its newest record."""
    await create_topic(broker.address, kind, **COMPACTED)
    newest = await _fill_with_gaps(broker, kind)
    records = await read_records(broker.address, kind)
    async with bridging() as bridge:
        await wait_until(lambda: seen == newest, "every key has its newest record")

        async def is_at_end() -> bool:
            return await committed_lag(broker.address, kind, f"group-{kind}") == 0

        await wait_until(is_at_end, "everything is committed")
        received = bridge.received

    assert received <= len(records) < records[-1].offset + 1


async def _fill_with_gaps(broker: EmbeddedBroker, topic: str) -> dict[str, int]:
    """Send newer and newer records of a few keys until the broker has taken older ones away; gives the newest."""
    newest: dict[str, int] = {}
    async with producing(broker.address) as producer:

        async def has_gaps() -> bool:
            for number in range(5):
                newest[f"k{number}"] = newest.get(f"k{number}", 0) + 1
                value = json.dumps(newest[f"k{number}"]).encode()
                await producer.send_and_wait(topic, value, key=b"k%d" % number)
            records = await read_records(broker.address, topic)
            return len(records) < records[-1].offset + 1

        await wait_until(has_gaps, "the broker has compacted the topic", seconds=40)
    return newest
