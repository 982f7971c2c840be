"""The bridge on topics that are not as simple as most: compacted ones, and dead letters that nobody takes."""

import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Context, Message, handler
from shared.errors import Misconfigured
from shared.messages.encoding import Pack
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.bridge.bridge import Bridge
from starter.bridge.group_lag import read_group_lag
from starter.bridge.offsets import OffsetsWentBack, write_note
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.dead_letter_topic import LetterSelection, open_box
from starter.records.dead_letters import SUFFIX
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.support.bridges import is_running, run_bridge
from tests.support.records import producing
from tests.support.subjects import declare
from tests.support.topics import (
    commit,
    committed_lag,
    configure_topic,
    create_topic,
    make_again,
    read_progress,
    read_records,
)

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
        await wait_until(lambda: bridge.scheduler.blocked, "its dead letter is refused")
        for number in numbers:
            await producer.send_and_wait(kind, b"1", key=b"k%d" % number, partition=number)
        await wait_until(lambda: len(seen) == PARTITIONS - 1, "the other partitions go on")

        async def progress() -> list[int]:
            return [x.committed for x in await read_progress(broker.address, kind, f"group-{kind}", PARTITIONS)]

        await wait_until(lambda: _equals(progress, [0, 1, 1]), "only theirs is committed")
        meanwhile = dict(seen)
        blocked = [*bridge.scheduler.blocked]
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


async def test_a_topic_that_was_made_again_while_the_bridge_was_away_is_another_one(
    bridging: Bridging, broker: EmbeddedBroker, seen: dict[str, Any], kind: str
) -> None:
    """Its records act, though their offsets are old ones of the topic that had the name before."""
    await create_topic(broker.address, kind)
    async with bridging():
        await _send(broker, kind, 0, 1, 2)
        await wait_until(lambda: seen == {"k": 2}, "the last record counts")
        await wait_until(lambda: _equals(lambda: committed_lag(broker.address, kind, f"group-{kind}"), 0), "committed")
    await make_again(broker.address, kind)
    await _send(broker, kind, 3, None)
    await _send(broker, kind, 4)
    async with bridging() as bridge:
        await wait_until(lambda: seen == {"k": 4}, "the newest record of the new topic counts")
        outcomes = bridge.delivery_loop.outcomes.counts

    assert outcomes["ignored"] == 0


@pytest.mark.parametrize("encoding", ["solo"])  # what the bridge does is the same for packs
async def test_a_topic_that_is_made_again_while_it_is_read_is_read_from_its_beginning(
    bridging: Bridging, broker: EmbeddedBroker, seen: dict[str, Any], kind: str
) -> None:
    """The bridge goes on with the new topic, or it ends and says so; then the next one does."""
    await create_topic(broker.address, kind)
    with contextlib.suppress(OffsetsWentBack):
        async with bridging():
            await _send(broker, kind, 0, 1, 2)
            await wait_until(lambda: seen == {"k": 2}, "the last record counts")
            await make_again(broker.address, kind)
            await _send(broker, kind, 3)
            await wait_until(lambda: seen == {"k": 3} or not is_running(kind), "it is read, or the bridge ends", 60)
    async with bridging():
        await wait_until(lambda: seen == {"k": 3}, "the record of the new topic counts")


@pytest.mark.parametrize("encoding", ["solo"])  # what the bridge does is the same for packs
async def test_an_offset_of_an_older_topic_counts_as_none(
    bridging: Bridging, broker: EmbeddedBroker, seen: dict[str, Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers forget offsets with their topic, but one may be committed late: the note beside it says what it is of."""
    await create_topic(broker.address, kind)
    await _send(broker, kind, 0, 1, 2)
    await commit(broker.address, kind, f"group-{kind}", {0: 3}, note=write_note("of-older"))
    before = await read_group_lag({"bootstrap_servers": broker.address}, f"group-{kind}", [kind])
    async with bridging():
        await wait_until(lambda: seen == {"k": 2}, "all records are read")
        await wait_until(lambda: _equals(lambda: committed_lag(broker.address, kind, f"group-{kind}"), 0), "committed")
    after = await read_group_lag({"bootstrap_servers": broker.address}, f"group-{kind}", [kind])

    flaw = f"{kind}/0: offset 3 is committed of an older topic of this name, which was deleted; bridges begin with the"
    assert "topic made again" in caplog.text
    assert before.partitions[0].flaw.startswith(flaw)
    assert (before.lag, after.lag, after.partitions[0].flaw) == (3, 0, "")


@pytest.mark.parametrize("encoding", ["solo"])  # what the bridge does is the same for packs
async def test_an_offset_beyond_the_end_of_its_partition_is_refused(
    bridging: Bridging, broker: EmbeddedBroker, kind: str
) -> None:
    """The log was cut, so messages would take new records for old ones; `bridge status` says so as well."""
    await create_topic(broker.address, kind)
    await _send(broker, kind, 0)
    await commit(broker.address, kind, f"group-{kind}", {0: 7})
    lag = await read_group_lag({"bootstrap_servers": broker.address}, f"group-{kind}", [kind])
    flaw = f"{kind}/0: offset 7 is committed, but"
    with pytest.raises(Misconfigured, match=re.escape(f"{flaw} the next record is at 0, so its log was cut or the")):
        async with bridging():
            await wait_until(lambda: not is_running(kind), "it ends")

    assert lag.partitions[0].flaw.startswith(f"{flaw} the partition ends at 1, so its log was cut or the topic was")


async def _send(broker: EmbeddedBroker, topic: str, *payloads: int | None) -> None:
    async with producing(broker.address) as producer:
        for payload in payloads:
            value = None if payload is None else json.dumps(payload).encode()
            await producer.send_and_wait(topic, value, key=b"k", partition=0)


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
