"""The bridge on a real broker and a real Temporal server: every record acts, none twice, offsets follow."""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from temporalio.client import Client

from activities import Again, Context, Done, Message, handler
from shared.messages.encoding import Pack
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.bridge.bridge import Bridge
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.dead_letter_topic import DeadLetterTopic, LetterSelection, open_box
from starter.records.dead_letters import DeadLetter
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.support.bridges import run_bridge
from tests.support.subjects import declare
from tests.support.topics import committed_lag, create_topic

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

PARTITIONS = 4
PACK = Pack(packs=10, size=1000, coalesce=timedelta(0))
Bridging = Callable[..., AbstractAsyncContextManager[Bridge]]


@pytest.fixture
async def topic(broker: EmbeddedBroker, kind: str) -> str:
    """A topic of the test's own, named like its kind."""
    await create_topic(broker.address, kind, PARTITIONS)
    return kind


@pytest.fixture
def bridging(client: Client, settings: Settings, broker: EmbeddedBroker, kind: str, encoding: str) -> Bridging:
    """Run a bridge for the length of an `async with` block; it drains at the end."""

    def bridging(
        topic: str,
        *,
        is_mapped: bool = True,
        options: FormatOptions | None = None,
        more_kinds: tuple[str, ...] = (),
        **changes: Any,
    ) -> AbstractAsyncContextManager[Bridge]:
        starter = BulkStarter(client, settings, encodings=declare(encoding, kind, PACK), revises=True)
        if options is None:
            options = FormatOptions.read(kind=kind, id_from="key") if is_mapped else FormatOptions()
        formats = Formats(options, EnvelopeRules(dict.fromkeys((kind, *more_kinds), "short")))
        return run_bridge(starter, broker.address, topic, formats, **changes)

    return bridging


@contextlib.asynccontextmanager
async def producing(broker: EmbeddedBroker, **options: Any) -> AsyncGenerator[Any]:
    """Give a producer."""
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker.address, **options)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def send(broker: EmbeddedBroker, topic: str, records: list[tuple[str, Any]]) -> None:
    """Send records; the value None is a tombstone."""
    async with producing(broker) as producer:
        for key, value in records:
            encoded = None if value is None else json.dumps(value).encode()
            await producer.send(topic, encoded, key=key.encode())
        await producer.flush()


async def test_every_record_becomes_a_message_and_is_committed(
    bridging: Bridging, broker: EmbeddedBroker, serve: Serve, topic: str, kind: str
) -> None:
    """New keys start, newer records revise, tombstones stop; what comes again after a restart does nothing."""
    calls: set[tuple[str, Any]] = set()  # on a machine that is busy for seconds a cycle may be called again

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again | Done:
        calls.add((message.id, message.payload))
        return Done() if message.payload == "once" else Again(after=timedelta(days=1))

    async with serve(work, lanes=("short",)):
        await send(broker, topic, [(f"k{n}", "first") for n in range(200)] + [("one-shot", "once")])
        async with bridging(topic) as bridge:
            await wait_until(lambda: len(calls) == 201, "all were started and ran", seconds=90)
            await send(broker, topic, [("k1", "second"), ("k2", None)])
            await wait_until(lambda: ("k1", "second") in calls, "the newer record was used")
            await wait_until(
                lambda: bridge.delivery_loop.outcomes.counts["stopped"] == 1, "the tombstone stopped its message"
            )
        lag = await committed_lag(broker.address, topic, f"group-{topic}", PARTITIONS)
        async with bridging(topic) as anew:
            await send(broker, topic, [("k3", "second")])
            await wait_until(lambda: ("k3", "second") in calls, "the restarted bridge goes on where it was")

    assert (lag, len(calls), sum(anew.delivery_loop.outcomes.counts.values())) == (0, 203, 1)


async def test_a_deleted_row_of_debezium_stops_its_message(
    bridging: Bridging, broker: EmbeddedBroker, serve: Serve, topic: str, kind: str
) -> None:
    """By its delete, or by the tombstone alone where compaction has taken the delete away; nothing is a dead letter."""
    seen: dict[str, Any] = {}

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        seen[message.id] = message.payload
        return Again(after=timedelta(days=1))

    rows = [{"id": number, "what": "order"} for number in range(3)]
    keys = [json.dumps({"id": row["id"]}) for row in rows]
    options = FormatOptions.of_changes(kind=kind)
    async with serve(work, lanes=("short",)), bridging(topic, options=options) as bridge:
        await send(broker, topic, [(k, {"op": "c", "after": r}) for k, r in zip(keys, rows, strict=True)])
        await wait_until(lambda: seen == {str(row["id"]): row for row in rows}, "each row has its message")
        await send(broker, topic, [(keys[0], {"op": "d", "before": rows[0], "after": None}), (keys[0], None)])
        await send(broker, topic, [(keys[1], None)])
        await wait_until(
            lambda: bridge.delivery_loop.outcomes.counts["stopped"] >= 2, "the messages of two rows are stopped"
        )
        await wait_until(lambda: bridge.received == 6 and not bridge.scheduler.in_flight, "all is done")
        outcomes = dict(bridge.delivery_loop.outcomes.counts)

    assert outcomes["started"] == 3
    assert outcomes.keys() <= {"started", "stopped", "ignored"}


@pytest.mark.long
async def test_members_come_and_go_while_records_flow(
    bridging: Bridging, broker: EmbeddedBroker, serve: Serve, topic: str, kind: str
) -> None:
    """A second and a third bridge join, the first one leaves: every message ends with its newest record."""
    newest: dict[str, Any] = {}

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        newest[message.id] = message.payload
        return Again(after=timedelta(days=1))

    keys = [f"k{n}" for n in range(120)]
    async with serve(work, lanes=("short",)), bridging(topic) as second:
        async with bridging(topic) as first:
            flowing = asyncio.create_task(_flow(broker, topic, keys))
            await wait_until(lambda: _shares(first, second) == [2, 2], "two share the topic")
        async with bridging(topic) as third:
            await wait_until(lambda: third.assignment.partitions, "a third takes part")
            await flowing
            await wait_until(lambda: newest == dict.fromkeys(keys, 9), "all have their newest record", 90)
            shares = _shares(second, third)

    assert shares == [2, 2]
    assert await committed_lag(broker.address, topic, f"group-{topic}", PARTITIONS) == 0


def _shares(*bridges: Bridge) -> list[int]:
    return [len(bridge.assignment.partitions) for bridge in bridges]


async def _flow(broker: EmbeddedBroker, topic: str, keys: list[str]) -> None:
    for revision in range(10):
        await send(broker, topic, [(key, revision) for key in keys])
        await asyncio.sleep(0.5)


async def test_offsets_go_past_what_holds_no_records(
    bridging: Bridging, broker: EmbeddedBroker, serve: Serve, topic: str, kind: str
) -> None:
    """Aborted records are not read, and the markers of transactions at the end of a partition are left behind."""
    seen: list[Any] = []

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Done:
        seen.append(message.payload)
        return Done()

    async with producing(broker, transactional_id=topic) as producer:
        for name in ("kept", "aborted", "kept too", "aborted too"):
            await producer.begin_transaction()
            for number in range(PARTITIONS):
                await producer.send_and_wait(topic, json.dumps(name).encode(), key=b"%d" % number, partition=number)
            await (producer.abort_transaction() if "aborted" in name else producer.commit_transaction())
    async with serve(work, lanes=("short",)), bridging(topic):

        async def is_at_end() -> bool:
            return await committed_lag(broker.address, topic, f"group-{topic}", PARTITIONS) == 0

        await wait_until(is_at_end, "everything is committed, the last markers too")
        await wait_until(lambda: "kept too" in seen, "what was committed is processed")

    assert set(seen) <= {"kept", "kept too"}


POISON: dict[str, list[bytes]] = {
    "NotJson": [b"{", b"hello", b'{"id": NaN}'],
    "NotUtf8": [b'"\xff"'],
    "TooLarge": [b'{"kind": "KIND", "id": "a", "payload": "' + b"x" * 5000 + b'"}'],
    "UnknownKind": [b'{"kind": "nobody", "id": "a"}'],
    "UnknownSchemaVersion": [b'{"schema_version": 9, "kind": "KIND", "id": "a"}'],
    "MissingField": [b'{"kind": "KIND"}', b'{"id": "a"}', b"{}"],
    "InvalidField": [
        b'{"kind": "KIND", "id": "a", "scheduled_at": "2026-11-21T20:00:00"}',
        b'{"kind": "KIND", "id": ""}',
    ],
    "NotAnObject": [b"[1, 2]", b"null", b'"text"'],
}
POISONS = 25
"""So many of each."""
GOOD = {"solo": 300, "pack": 5000}


async def test_poison_goes_to_the_dead_letters_and_holds_nobody_up(
    bridging: Bridging, broker: EmbeddedBroker, serve: Serve, topic: str, encoding: str
) -> None:
    """Every good record is started, every bad one lies there under the right class, unchanged; all is committed."""
    seen: set[str] = set()

    @handler(topic)
    async def work(message: Message, ctx: Context) -> Again:
        seen.add(message.id)
        return Again(after=timedelta(days=1))

    bad = [
        (name, b"%d" % n, values[n % len(values)].replace(b"KIND", topic.encode()))
        for name, values in POISON.items()
        for n in range(POISONS)
    ]
    await _mix(broker, topic, GOOD[encoding], bad)
    async with serve(work, lanes=("short",)), bridging(topic, is_mapped=False) as bridge:
        await wait_until(
            lambda: bridge.delivery_loop.outcomes.counts["dead"] >= len(bad), "all the poison is laid down"
        )
        await wait_until(lambda: len(seen) == GOOD[encoding], "all the others run", seconds=90)
    async with open_box({"bootstrap_servers": broker.address}, topic) as box:
        letters = await _all_letters(box)

    assert Counter(letter.error_class for letter in letters) == dict.fromkeys(POISON, POISONS)
    assert Counter((x.error_class, x.record.key, x.record.value) for x in letters) == Counter(bad)
    assert {letter.topic for letter in letters} == {topic}
    assert await committed_lag(broker.address, topic, f"group-{topic}", PARTITIONS) == 0


async def _mix(broker: EmbeddedBroker, topic: str, good: int, bad: list[tuple[str, bytes, bytes]]) -> None:
    records = [(f"g{n}".encode(), json.dumps({"kind": topic, "id": f"g{n}"}).encode()) for n in range(good)]
    records += [(key, value) for _, key, value in bad]
    random.Random(5).shuffle(records)
    async with producing(broker) as producer:
        for key, value in records:
            await producer.send(topic, value, key=key)
        await producer.flush()


async def _all_letters(box: DeadLetterTopic) -> list[DeadLetter]:
    return [letter async for letter, _ in box.find(LetterSelection())]


async def test_what_is_replayed_after_the_fault_is_mended_lives_once(
    bridging: Bridging, broker: EmbeddedBroker, serve: Serve, topic: str
) -> None:
    """A handler was missing; once it is there, its records are replayed by their error class, twice by mistake."""
    seen: list[tuple[str, Any]] = []
    missing = f"{topic}-new"

    @handler(missing)
    async def work(message: Message, ctx: Context) -> Done:
        seen.append((message.id, message.payload))
        return Done()

    records = [(f"k{n}", {"kind": missing, "id": f"k{n}", "payload": n}) for n in range(5)]
    await send(broker, topic, [*records, ("bad", "no object")])
    async with bridging(topic, is_mapped=False) as bridge:
        await wait_until(lambda: bridge.delivery_loop.outcomes.counts["dead"] == 6, "nobody knows the kind")
    unknown = LetterSelection(error_class="UnknownKind")
    async with (
        serve(work, lanes=("short",)),
        bridging(topic, is_mapped=False, more_kinds=(missing,)) as bridge,
        open_box({"bootstrap_servers": broker.address}, topic) as box,
    ):
        letters = [letter async for letter, _ in box.find(unknown)]
        await box.replay(letters)
        await wait_until(lambda: len(seen) == 5, "they live")
        await box.replay(letters)
        await wait_until(lambda: bridge.received == 10, "the replays of before have come again")
        waiting = await _all_letters(box)

    assert sorted(seen) == [(f"k{n}", n) for n in range(5)]
    assert [letter.error_class for letter in waiting] == ["NotAnObject"]
