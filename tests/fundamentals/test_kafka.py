"""The tutorial of Kafka: each record of a topic starts, changes or stops the message that its key names."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from temporalio.client import Client

from activities import Again, Context, Message, handler
from shared.messages.envelope import EnvelopeRules
from shared.settings import Settings
from starter.control import Control
from starter.local.kafka.broker import EmbeddedBroker
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until
from tests.support.bridges import run_bridge
from tests.support.topics import create_topic

pytestmark = pytest.mark.timeout(120)  # the session's broker may have to start for it


Send = Callable[[str, Any], Awaitable[None]]


@pytest.fixture
async def send(broker: EmbeddedBroker, kind: str) -> AsyncIterator[Send]:
    """Send records to a topic that is named like the kind; the value None is a tombstone."""
    await create_topic(broker.address, kind)
    producer: Any = AIOKafkaProducer(bootstrap_servers=broker.address)
    await producer.start()

    async def send(key: str, value: Any) -> None:
        await producer.send_and_wait(kind, None if value is None else json.dumps(value).encode(), key=key.encode())

    yield send
    await producer.stop()


@pytest.fixture
async def _bridge(
    send: Send, client: Client, settings: Settings, broker: EmbeddedBroker, kind: str
) -> AsyncIterator[None]:
    """A bridge that makes messages of the topic's records: the id is the key, the payload is the value."""
    formats = Formats(FormatOptions.read(kind=kind, id_from="key"), EnvelopeRules({kind: "short"}))
    async with run_bridge(BulkStarter(client, settings, revises=True), broker.address, kind, formats):
        yield


@pytest.mark.usefixtures("_bridge")
async def test_a_key_is_a_message_and_the_newest_record_is_its_payload(
    serve: Serve, control: Control, send: Send, kind: str
) -> None:
    """A first record starts its message, a later one revises it, and one without a value, a tombstone, stops it."""
    seen: list[Any] = []

    @handler(kind)
    async def work(message: Message, ctx: Context) -> Again:
        seen.append((message.id, message.payload))
        return Again(after=timedelta(days=1))

    async with serve(work, lanes=("short",)):
        await send("ada", {"price": 1})
        await wait_until(lambda: seen == [("ada", {"price": 1})], "the first record has started it")

        await send("ada", {"price": 2})
        await wait_until(lambda: seen[1:] == [("ada", {"price": 2})], "the second has revised it")

        await send("ada", None)

        async def is_stopped() -> bool:
            return (await control.show(kind, "ada")).listed.state == "stopped"

        await wait_until(is_stopped, "the tombstone has stopped it")
