"""The outcomes topic on a real broker: every cycle has an event, and a broker in trouble disturbs nothing else."""

import importlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import Again, Context, Done, Message, Reject, RetryAfter, handler
from shared.messages.timespan import parse_moment
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from tests.conftest import Begin, Serve, wait_until
from tests.support.processes import kill
from tests.support.topics import create_topic

pytestmark = pytest.mark.timeout(120)  # workers begin and end in it, each of them seconds of processor time

Events = Callable[[int], Any]


@pytest.fixture
async def own_broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker that a test may kill."""
    async with run_broker(BrokerOptions(data=tmp_path, port=find_free_port())) as running:
        yield running


async def read_events(address: str, topic: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Read a topic's events, with their keys, in order, until `count` different ones have come."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest")
    await consumer.start()
    records: list[Any] = []
    try:
        while len({record.value for record in records}) < count:
            records.append(await consumer.getone())
    finally:
        await consumer.stop()
    return [(record.key.decode(), json.loads(record.value)) for record in records]


async def test_every_cycle_is_told_with_what_was_decided_on_it(
    serve: Serve, begin: Begin, broker: EmbeddedBroker, kind: str
) -> None:
    """One event for each try of each version, in order, keyed by the workflow id that the message has or would have."""
    await create_topic(broker.address, kind, 3)

    @handler(kind, max_attempts=2, backoff=timedelta(seconds=1))
    async def work(message: Message, ctx: Context) -> Again | Done | Reject:
        match message.version, ctx.attempt:
            case 0, _:
                return Again(after=timedelta(seconds=1), tolerance=timedelta(0), reason="first")
            case 1, 1:
                raise RuntimeError("out of order")
            case 1, _:
                return Again(after=timedelta(seconds=1), tolerance=timedelta(0))
            case 2, _:
                if not waited:
                    waited.append(message.version)
                    raise RetryAfter(timedelta(seconds=1), "not yet")
                return Reject("unfit")
            case _:
                return Done()

    waited: list[int] = []
    async with serve(work, lanes=("short",), outcomes_topic=kind, kafka_servers=broker.address):
        message = await begin(kind, correlation_id="c-1", tenant="t", priority=2)
        told = await read_events(broker.address, kind, 5)
        await wait_until(lambda: message.has(state="parked"), "the last outcome has arrived, after its event")
        status = await message.status()

    events = [event for _, event in told]
    again, failed, tried, _, parked = events
    assert {key for key, _ in told} == {f"{kind}:{message.id}"}
    assert [(e["version"], e["attempt"], e["outcome"], e["state"]) for e in events] == [
        (0, 1, "again", "active"),
        (1, 1, "failed", "active"),
        (1, 2, "again", "active"),
        (2, 1, "retry_after", "active"),
        (2, 1, "reject", "parked"),
    ]
    assert [e["reason"] for e in events] == [
        "first",
        "attempt 1 of 2: RuntimeError: out of order",
        "",
        "not yet",
        "unfit",
    ]
    assert {k: again[k] for k in ("schema_version", "kind", "id", "lane", "priority", "tenant", "correlation_id")} == {
        "schema_version": 1,
        "kind": kind,
        "id": message.id,
        "lane": "short",
        "priority": 2,
        "tenant": "t",
        "correlation_id": "c-1",
    }
    assert parse_moment(again["started_at"]) >= parse_moment(again["due_at"])
    assert parse_moment(again["next_due_at"]) > parse_moment(again["started_at"])
    assert parse_moment(tried["due_at"]) >= parse_moment(failed["next_due_at"]) - timedelta(milliseconds=1)
    assert (parked["next_due_at"], status["state"], status["parked_reason"]) == (None, "parked", "unfit")


@pytest.mark.long
async def test_a_broker_that_is_away_holds_no_message_up_and_is_told_later(
    serve: Serve, begin: Begin, own_broker: EmbeddedBroker, kind: str
) -> None:
    """Each version runs once, at its time, while the broker is dead; when it is back, it gets all of them, in order.

    What the broker stored without acknowledging it comes twice.
    """
    await create_topic(own_broker.address, kind)
    runs: Counter[tuple[str, int]] = Counter()

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again | Done:
        runs[message.id, message.version] += 1
        return Done() if message.version == 5 else Again(after=timedelta(seconds=1), tolerance=timedelta(0))

    async with serve(work, lanes=("short",), outcomes_topic=kind, kafka_servers=own_broker.address):
        messages = [await begin(kind) for _ in range(3)]
        await read_events(own_broker.address, kind, 3)
        await kill(own_broker)
        for message in messages:
            assert (await message.wait_ended())["state"] == "done"
        await own_broker.start()
        told = await read_events(own_broker.address, kind, 18)

    assert runs == {(message.id, version): 1 for message in messages for version in range(6)}
    for message in messages:
        versions = [event["version"] for _, event in told if event["id"] == message.id]
        assert list(dict.fromkeys(versions)) == list(range(6)), versions


async def test_events_are_safe_before_a_worker_that_is_told_to_stop_has_left(
    serve: Serve, begin: Begin, broker: EmbeddedBroker, kind: str
) -> None:
    """Nothing that was told is still in memory when the worker is gone."""
    await create_topic(broker.address, kind)

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Done:
        return Done()

    async with serve(work, lanes=("short",), outcomes_topic=kind, kafka_servers=broker.address):
        messages = [await begin(kind) for _ in range(20)]
        await wait_until(lambda: _all_ended(messages), "all are done")

    assert len(await read_events(broker.address, kind, 20)) == 20


async def _all_ended(messages: list[Any]) -> bool:
    return all([(await message.wait_ended())["state"] == "done" for message in messages])
