"""The embedded broker keeps what it accepted, and does what a Kafka broker does."""

import importlib
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidSetting, Misconfigured
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port
from tests.support.certificates import PASSWORD, make_certificate, secure
from tests.support.processes import kill
from tests.support.topics import create_topic

pytestmark = pytest.mark.timeout(120)

_kafka: Any = importlib.import_module("aiokafka")
_errors: Any = importlib.import_module("aiokafka.errors")


@asynccontextmanager
async def started(client: Any) -> AsyncGenerator[Any]:
    """Use a producer or consumer and leave it closed, also when it could not start."""
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


async def send(address: str, topic: str, *values: bytes, **options: Any) -> None:
    """Send records that the broker has accepted when this returns."""
    async with started(_kafka.AIOKafkaProducer(bootstrap_servers=address, acks="all", **options)) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def read(address: str, topic: str, count: int, **options: Any) -> list[bytes]:
    """Read this many records from the beginning."""
    options.setdefault("auto_offset_reset", "earliest")
    async with started(_kafka.AIOKafkaConsumer(topic, bootstrap_servers=address, **options)) as consumer:
        return [(await consumer.getone()).value for _ in range(count)]


@pytest.fixture
async def topic(broker: EmbeddedBroker, message_id: Callable[[], str]) -> str:
    """A topic of this test's own."""
    name = f"topic-{message_id()}"
    await create_topic(broker.address, name)
    return name


async def test_records_and_committed_offsets_survive_a_restart(broker: EmbeddedBroker, topic: str) -> None:
    """A group goes on where it was."""
    await send(broker.address, topic, b"one", b"two")
    group = {"group_id": topic, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with started(_kafka.AIOKafkaConsumer(topic, bootstrap_servers=broker.address, **group)) as consumer:
        first = await consumer.getone()
        await consumer.commit()

    await broker.stop()
    assert broker.process_id is None
    await broker.start()

    assert first.value == b"one"
    assert await read(broker.address, topic, 1, group_id=topic) == [b"two"]
    assert await read(broker.address, topic, 2) == [b"one", b"two"]


async def test_records_survive_a_kill_9(broker: EmbeddedBroker, topic: str) -> None:
    """What was accepted before is read after, and the topic takes more."""
    await send(broker.address, topic, b"before")

    await kill(broker)
    assert broker.process_id is None
    await broker.start()
    await send(broker.address, topic, b"after")

    assert await read(broker.address, topic, 2) == [b"before", b"after"]


async def test_a_transaction_shows_its_records_all_or_none(broker: EmbeddedBroker, topic: str) -> None:
    """Who reads committed records only never sees an aborted one; who reads all does."""
    options = {"bootstrap_servers": broker.address, "transactional_id": topic}
    async with started(_kafka.AIOKafkaProducer(**options)) as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept")
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"dropped")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept too")

    assert await read(broker.address, topic, 2, isolation_level="read_committed") == [b"kept", b"kept too"]
    assert await read(broker.address, topic, 3) == [b"kept", b"dropped", b"kept too"]


async def test_no_topic_comes_to_be_by_itself(broker: EmbeddedBroker, message_id: Callable[[], str]) -> None:
    """A mistyped name is an error for its sender."""
    with pytest.raises(_errors.KafkaError):
        await send(broker.address, f"mistyped-{message_id()}", b"lost", request_timeout_ms=1000)


async def test_a_topic_has_the_partitions_and_the_configuration_asked_for(
    broker: EmbeddedBroker, message_id: Callable[[], str]
) -> None:
    """Here the one that limits a record's size."""
    name = f"topic-{message_id()}"
    await create_topic(broker.address, name, partitions=3, max_message_bytes=100)

    async with started(_kafka.AIOKafkaProducer(bootstrap_servers=broker.address)) as producer:
        assert await producer.partitions_for(name) == {0, 1, 2}
        with pytest.raises(_errors.MessageSizeTooLargeError):
            await producer.send_and_wait(name, bytes(200))


async def test_a_listener_with_tls_and_passwords_lets_in_who_knows_one(tmp_path: Path) -> None:
    """Extra properties add it; the plain one stays, and a file that names passwords is its owner's alone."""
    await make_certificate(tmp_path, "broker")
    port = find_free_port()
    properties = secure(port, tmp_path / "broker.both")
    options = BrokerOptions(data=tmp_path, port=find_free_port(), extra_properties=properties)
    login: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(tmp_path / "broker.pem")),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
        "sasl_plain_password": PASSWORD,
    }
    async with run_broker(options) as broker:
        await create_topic(broker.address, "secrets")
        await send(f"127.0.0.1:{port}", "secrets", b"hush", **login)

        assert await read(f"127.0.0.1:{port}", "secrets", 1, **login) == [b"hush"]
        with pytest.raises(_errors.KafkaError):
            await send(f"127.0.0.1:{port}", "secrets", b"who?", **{**login, "sasl_plain_password": "wrong"})
        assert await read(broker.address, "secrets", 1) == [b"hush"]

    assert options.properties.stat().st_mode & 0o077 == 0


async def test_a_taken_port_is_named_before_anything_starts(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The sentence says what to change."""
    with pytest.raises(InvalidSetting, match=rf"^--kafka: port {broker.options.port} is taken by another program"):
        async with run_broker(BrokerOptions(data=tmp_path, port=broker.options.port)):
            pass

    assert not (tmp_path / "kafka.log").exists()


async def test_a_folder_serves_one_broker(broker: EmbeddedBroker) -> None:
    """A second one on another port would write the same files."""
    with pytest.raises(InvalidSetting, match="is in use by another server"):
        async with run_broker(BrokerOptions(data=broker.options.data, port=find_free_port())):
            pass


async def test_a_folder_that_kafka_would_take_for_two_is_refused(tmp_path: Path) -> None:
    """Kafka separates folders by commas."""
    with pytest.raises(InvalidSetting, match="has a comma in its path"):
        async with run_broker(BrokerOptions(data=tmp_path / "a,b", port=find_free_port())):
            pass


async def test_settings_it_can_not_read_are_told_in_its_own_words(tmp_path: Path) -> None:
    """The log's last line with a meaning is the end of our sentence."""
    options = BrokerOptions(data=tmp_path, port=find_free_port(), extra_properties={"num.io.threads": "many"})
    with pytest.raises(Misconfigured) as told:
        async with run_broker(options):
            pass

    assert str(told.value).startswith(f"the embedded broker did not start; read {tmp_path / 'kafka.log'}: ")
    assert "Invalid value many for configuration num.io.threads" in str(told.value)


async def test_a_broker_that_dies_at_its_start_says_why(tmp_path: Path) -> None:
    """Here the keys of a second listener are missing, which only Kafka itself finds out."""
    second = {
        "listeners": f"SECOND://127.0.0.1:{find_free_port()}",
        "listener.security.protocol.map": "SECOND:SSL",
        "ssl.keystore.location": str(tmp_path / "none.jks"),
        "ssl.keystore.password": "secret",
    }
    broker = EmbeddedBroker(BrokerOptions(data=tmp_path, port=find_free_port(), extra_properties=second))
    with pytest.raises(Misconfigured, match=r"NoSuchFileException: .*none\.jks"):
        await broker.start()
    assert broker.process_id is None
