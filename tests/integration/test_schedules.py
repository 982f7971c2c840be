"""Schedules of kafka-message-scheduler on a real broker: what its producers write is sent as its consumers expect."""

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from activities import Again, Done
from activities.api.resources import Resources
from activities.handlers.topic import topic
from activities.testing import make_context, make_message
from shared.messages.encoding import Pack
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.bridge.bridge import Bridge
from starter.control import Control
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.dead_letter_topic import LetterSelection, open_box
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.producers.schedules import ScheduleOptions
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.support.bridges import run_bridge
from tests.support.records import producing
from tests.support.subjects import declare
from tests.support.topics import committed_lag, create_topic, read_records

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 2
PACK = Pack(packs=2, size=1000, coalesce=timedelta(0))
RAW = bytes(range(256))
Bridging = Callable[[], AbstractAsyncContextManager[Bridge]]


@pytest.fixture
async def topics(broker: EmbeddedBroker, kind: str) -> tuple[str, str, str]:
    """The topics of the schedules, of the history, and of what is sent."""
    names = (kind, f"{kind}-history", f"{kind}-target")
    for name in names:
        await create_topic(broker.address, name, PARTITIONS)
    return names


@pytest.fixture
def bridging(client: Client, settings: Settings, broker: EmbeddedBroker, kind: str, encoding: str) -> Bridging:
    """Run a bridge on the topic of the test's kind, which holds schedules."""

    def bridging() -> AbstractAsyncContextManager[Bridge]:
        starter = BulkStarter(client, settings, encodings=declare(encoding, kind, PACK), revises=True)
        options = FormatOptions.of_schedules(kind, ScheduleOptions(history_topic=f"{kind}-history"))
        return run_bridge(starter, broker.address, kind, Formats(options, EnvelopeRules({kind: "short"})))

    return bridging


def headers_of(target: str, epoch: float, key: bytes | None = b"k") -> list[tuple[str, bytes | None]]:
    """Give the headers of a schedule."""
    return [
        ("scheduler-epoch", b"%d" % epoch),
        ("scheduler-target-topic", target.encode()),
        ("scheduler-target-key", key),
        ("customer", RAW),
    ]


async def read_all(broker: EmbeddedBroker, name: str) -> list[Any]:
    """Give the records of all partitions."""
    return [each for number in range(PARTITIONS) for each in await read_records(broker.address, name, number)]


async def test_schedules_are_sent_once_as_their_scheduler_sends_them(
    bridging: Bridging,
    broker: EmbeddedBroker,
    serve: Serve,
    control: Control,
    topics: tuple[str, str, str],
    *,
    kind: str,
    encoding: str,
) -> None:
    """At their epochs, with their headers; the newest record of a key counts, a tombstone stops it.

    Each that is sent has a copy in the history, and a tombstone in its own partition. That tombstone comes back to the
    bridge and stops no schedule that was written under the same key meanwhile, but one that is read anew.
    """
    schedules, history, target = topics
    declared = replace(topic, kind=kind, encoding=PACK) if encoding == "pack" else replace(topic, kind=kind)
    now = int(time.time())
    async with serve(declared, lanes=("short",), kafka_servers=broker.address), producing(broker.address) as producer:

        async def send(key: str, value: bytes | None, epoch: float, target_key: bytes | None = b"k") -> None:
            headers = headers_of(target, epoch, target_key) if value is not None else None
            await producer.send_and_wait(schedules, value, key=key.encode(), headers=headers)

        await send("raw", RAW, now + 3, None)
        await send("moved", b"old", now + 3600)
        await send("moved", b"new", now + 3)
        await send("gone", b"never", now + 4)
        await send("gone", None, 0)
        await send("later", b"later", now + 86400)
        await producer.send_and_wait(schedules, b"bad", key=b"bad", headers=[("scheduler-epoch", b"soon")])
        async with bridging():

            async def are_deleted() -> list[Any]:
                gone = [each for each in await read_all(broker, schedules) if each.value is None]
                return gone if len(gone) == 3 else []

            tombstones = await wait_until(are_deleted, "two were sent, and three are deleted")
            sent = await read_all(broker, target)
            copies = await read_all(broker, history)
            # a schedule under the same key, and the tombstone of the one before, so old that it is not left alone
            ours = next(each for each in tombstones if each.key == b"raw")
            again = await producer.send_and_wait(
                schedules, b"again", key=b"raw", headers=headers_of(target, now + 86400)
            )
            past = {"timestamp_ms": (now - 3600) * 1000}
            await producer.send_and_wait(schedules, None, key=b"raw", headers=list(ours.headers), **past)
            # what was sent by an installation whose memory is gone
            sent_before = await producer.send_and_wait(
                schedules, b"before", key=b"before", headers=headers_of(target, now + 86400)
            )
            origin = f"{schedules}/{sent_before.partition}/{sent_before.offset + 1}".encode()
            await producer.send_and_wait(schedules, None, key=b"before", headers=[("dormice.origin", origin)], **past)

            async def are_done() -> bool:
                return await committed_lag(broker.address, schedules, f"group-{schedules}", PARTITIONS) == 0

            await wait_until(are_done, "all have been worked on")

        async def is_stopped() -> bool:
            return (await control.show(kind, "before")).listed.state == "stopped"

        await wait_until(is_stopped, "what was sent before is not sent again")
        shown = [await control.show(kind, key) for key in ("raw", "later")]
        async with open_box({"bootstrap_servers": broker.address}, schedules) as box:
            letters = [letter.message async for letter, _ in box.find(LetterSelection())]

    by_value = {each.value: each for each in sent}
    written = {each.value: each for each in await read_all(broker, schedules) if each.value is not None}
    assert len(sent) == 2
    assert {value: each.key for value, each in by_value.items()} == {RAW: None, b"new": b"k"}
    for value, each in by_value.items():
        origin = written[value]
        assert each.headers[:-1] == (
            *origin.headers,
            ("scheduler-timestamp", b"%d" % (origin.timestamp // 1000)),
            ("scheduler-key", origin.key),
            ("scheduler-topic", schedules.encode()),
        )
        assert each.headers[-1][0] == "dormice-idempotency-key"
        assert each.timestamp >= (now + 3) * 1000
    assert {(each.key, each.value, each.headers) for each in copies} == {
        (each.key, each.value, each.headers) for each in sent
    }
    origins = {(each.key, each.partition) for each in written.values()}
    assert {each.key for each in tombstones} == {b"raw", b"moved", b"gone"}
    assert {(each.key, each.partition) for each in tombstones} <= origins
    assert again.partition == ours.partition
    assert [view.listed.state for view in shown] == ["active", "active"]
    assert [letter.partition(";")[0] for letter in letters] == ["scheduler-epoch: is 'soon'"]


async def test_what_is_written_stays_so_when_the_next_record_is_refused(broker: EmbeddedBroker, kind: str) -> None:
    """Only what is left is the payload of the next cycle, so the first record is not sent again."""
    await create_topic(broker.address, kind)
    settings = Settings(kafka_servers=broker.address)
    missing = {"topic": f"{kind}-missing"}
    last = {"topic": kind, "key": "x", "value": None}
    message = make_message(topic, {"topic": kind, "key": "k", "value": "v", "then": [missing, last]})
    async with Resources() as resources:
        outcome = await topic(message, make_context(message, settings=settings, resources=resources))
        assert isinstance(outcome, Again)
        rest = make_message(topic, outcome.payload)
        await create_topic(broker.address, f"{kind}-missing")
        ended = await topic(rest, make_context(rest, settings=settings, resources=resources))

    assert "UnknownTopicOrPartitionError; create the topic" in outcome.reason
    assert outcome.payload == {"topic": f"{kind}-missing", "key": "k", "value": "v", "then": [last]}
    assert isinstance(ended, Done)
    assert [(each.key, each.value) for each in await read_records(broker.address, kind)] == [(b"k", b"v"), (b"x", None)]
    assert [each.value for each in await read_records(broker.address, f"{kind}-missing")] == [b"v"]
