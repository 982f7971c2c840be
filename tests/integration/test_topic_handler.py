"""The `topic` handler on a real broker: records arrive as they were held, once, and trouble stops no worker."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.handlers.echo import echo
from activities.handlers.topic import IDEMPOTENCY_HEADER, RecordRefused, read_plans, topic
from shared.kafka.safe_producer import BrokerError, OutgoingRecord
from shared.kafka.topic_producer import TopicProducer
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from starter.starting.bulk import BulkStarter
from tests.conftest import Begin, Serve, Start, wait_until
from tests.support.processes import kill
from tests.support.subjects import declare
from tests.support.topics import create_topic, read_records

pytestmark = pytest.mark.timeout(120)

RAW = bytes(range(256))
ENCODED = {"base64": base64.b64encode(RAW).decode()}


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (7, "payload: is no object"),
        ({"value": "v"}, "payload.topic: is no name of a topic"),
        ({"topic": ".."}, "payload.topic: is no name of a topic"),
        ({"topic": "a/b"}, "payload.topic: is no name of a topic"),
        ({"topic": "t", "values": 1}, "payload.values: is not a field of a record"),
        ({"topic": "t", "partition": -1}, "payload.partition: is -1"),
        ({"topic": "t", "partition": True}, "payload.partition: is True"),
        ({"topic": "t", "key": 5}, "payload.key: is neither text nor bytes"),
        ({"topic": "t", "value": {"base64": "%%"}}, "payload.value.base64: is no Base64"),
        ({"topic": "t", "value": {"a": 1}}, "payload.value: is neither text nor bytes"),
        ({"topic": "t", "headers": "x"}, "payload.headers: is no list"),
        ({"topic": "t", "headers": [["x"]]}, "payload.headers[0]: is no pair"),
        ({"topic": "t", "headers": [["x", "y"], [1, "y"]]}, "payload.headers[1]: is no pair"),
        ({"topic": "t", "headers": {"x": 5}}, "payload.headers[0]: is neither text nor bytes"),
    ],
)
def test_a_payload_that_is_no_record_is_refused_with_its_field(payload: Any, problem: str) -> None:
    """In a sentence that says what to do."""
    with pytest.raises(RecordRefused) as caught:
        read_plans(payload)

    assert str(caught.value).startswith(problem)


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker that a test may kill."""
    async with run_broker(BrokerOptions(data=tmp_path, port=find_free_port())) as running:
        yield running


async def test_records_arrive_byte_for_byte(serve: Serve, begin: Begin, broker: EmbeddedBroker, kind: str) -> None:
    """Text, raw bytes, tombstones, records without a key or with neither; repeated headers stay in order.

    What Kafka can't take parks: a partition that is not there, and a record too large for its topic, though not its
    neighbours.
    """
    await create_topic(broker.address, kind, 2, max_message_bytes=1500)
    records: dict[str, dict[str, Any]] = {
        "text": {"key": "käfer", "value": "grün", "headers": {"a": "1"}},
        "raw": {"key": ENCODED, "value": ENCODED, "headers": [["a", ENCODED], ["b", None], ["a", ""]]},
        "tombstone": {"key": "gone"},
        "no key": {"value": "alone"},
        "neither": {"partition": 1},
        "there": {"key": "k", "value": "v", "partition": 1},
    }
    bad = {"nowhere": {"value": "v", "partition": 2}, "large": {"key": "k", "value": "x" * 3000}}
    async with serve(replace(topic, kind=kind), lanes=("short",), kafka_servers=broker.address):
        messages = {
            name: await begin(kind, payload={"topic": kind, **fields}) for name, fields in (records | bad).items()
        }
        results = {name: (await messages[name].wait_ended())["result"] for name in records}
        for name in bad:
            await wait_until(lambda name=name: messages[name].has(state="parked"), f"{name} is parked")
        reasons = {name: (await messages[name].status())["parked_reason"] for name in bad}

    found = [record for number in (0, 1) for record in await read_records(broker.address, kind, number)]
    by_id = {record.headers[-1][1].decode().split(":")[1]: record for record in found}
    seen = {name: by_id[messages[name].id] for name in records}
    assert len(found) == len(records)
    assert {name: (record.key, record.value, record.headers[:-1]) for name, record in seen.items()} == {
        "text": ("käfer".encode(), "grün".encode(), (("a", b"1"),)),
        "raw": (RAW, RAW, (("a", RAW), ("b", None), ("a", b""))),
        "tombstone": (b"gone", None, ()),
        "no key": (None, b"alone", ()),
        "neither": (None, None, ()),
        "there": (b"k", b"v", ()),
    }
    assert {record.headers[-1][0] for record in found} == {IDEMPOTENCY_HEADER}
    assert {record.headers[-1][1].decode() for record in found} == {f"{kind}:{messages[n].id}:0" for n in records}
    assert results == {n: {"topic": kind, "partition": r.partition, "offset": r.offset} for n, r in seen.items()}
    assert (seen["neither"].partition, seen["there"].partition) == (1, 1)
    assert reasons["nowhere"].startswith(f"payload.partition: topic {kind} has 2 partitions, and none is 2")
    assert "MessageSizeTooLargeError; raise max.message.bytes" in reasons["large"]


async def test_a_record_is_sent_once_however_often_it_is_asked_for(broker: EmbeddedBroker, kind: str) -> None:
    """By calls of one cycle; another cycle sends it again. A topic that is not there is named."""
    await create_topic(broker.address, kind, 3)
    producer = TopicProducer({"bootstrap_servers": broker.address}, 5.0)
    records = [OutgoingRecord(b"%d" % n, b"v" * 50, (("n", b"%d" % n),)) for n in range(500)]
    try:
        places = await asyncio.gather(*(producer.write(kind, None, record, "a") for record in records + records))
        assert [await producer.write(kind, None, record, "a") for record in records] == places[500:]
        assert await producer.write(kind, None, records[0], "b") not in places
        with pytest.raises(BrokerError, match="UnknownTopicOrPartitionError; create the topic"):
            await producer.write(f"{kind}-other", None, records[0], "a")
    finally:
        await producer.stop()

    found = [record for number in range(3) for record in await read_records(broker.address, kind, number)]
    assert sorted(int(record.key) for record in found) == [0, *range(500)]
    assert places[:500] == places[500:]


@pytest.mark.fault
@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_broker_that_restarts_in_the_middle_gets_each_record_once(
    serve: Serve,
    start: Start,
    client: Client,
    settings: Settings,
    own_broker: EmbeddedBroker,
    *,
    kind: str,
    encoding: str,
) -> None:
    """None is lost, parked or written twice, and the worker goes on with other work meanwhile."""
    await create_topic(own_broker.address, kind, 2)
    count = 600
    now = datetime.now(UTC)
    pack = Pack(packs=2, size=1000, coalesce=timedelta(0))
    # a task that a busy machine lets time out calls its handlers again, and the record is written twice
    settings = replace(settings, workflow_task_timeout=timedelta(seconds=60))
    starter = BulkStarter(client, settings, encodings=declare(encoding, kind, pack))
    async with serve(replace(topic, kind=kind), echo, lanes=("short",), kafka_servers=own_broker.address):

        def envelope(number: int) -> Envelope:
            due = now + timedelta(seconds=20 + number / 60)
            payload = {"topic": kind, "key": str(number), "value": ENCODED}
            return Envelope(
                kind=kind, id=str(number), lane="short", scheduled_at=due, tolerance_seconds=0, payload=payload
            )

        async for receipt in starter.start_all((number, envelope(number)) for number in range(count)):
            assert receipt.run_id, receipt
        await wait_until(lambda: time.time() > now.timestamp() + 24, "some are due")
        await kill(own_broker)
        await wait_until(lambda: time.time() > now.timestamp() + 31, "all are due")
        other = await start("echo", payload={"cycles": 1})
        assert (await other.result())["state"] == "done"
        await own_broker.start()

        async def are_written() -> bool:
            return len(await read_all(own_broker.address, kind)) >= count

        await wait_until(are_written, "all are written", 200)
        await asyncio.sleep(2)
        found = await read_all(own_broker.address, kind)

    assert sorted(int(record.key) for record in found) == list(range(count))
    assert {record.value for record in found} == {RAW}


async def read_all(address: str, name: str) -> list[Any]:
    """Give the records of both partitions."""
    return [record for number in (0, 1) for record in await read_records(address, name, number)]
