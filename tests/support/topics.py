"""Topics for tests on a real broker, which makes none by itself."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.conftest import wait_until

_admin: Any = importlib.import_module("aiokafka.admin")
_errors: Any = importlib.import_module("aiokafka.errors")


async def create_topic(address: str, name: str, partitions: int = 1, **config: object) -> None:
    """Make a topic and wait until it can be used; `config` is Kafka's own with "_" for ".": retention_ms=1000."""
    configs = {key.replace("_", "."): str(value) for key, value in config.items()}
    wanted = _admin.NewTopic(name, num_partitions=partitions, replication_factor=1, topic_configs=configs)
    client = _admin.AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    try:
        answer = await client.create_topics([wanted])
        for _, code, *said in answer.topic_errors:
            if code:
                raise _errors.for_code(code)(*said)

        async def is_led() -> bool:
            (topic,) = await client.describe_topics([name])
            leaders = [partition["leader"] for partition in topic["partitions"]]
            return len(leaders) == partitions and -1 not in leaders

        await wait_until(is_led, f"all partitions of {name} have a leader")
    finally:
        await client.close()


async def delete_topic(address: str, name: str) -> None:
    """Delete a topic and wait until the broker knows it no more."""
    client = _admin.AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    try:
        await client.delete_topics([name])

        async def is_gone() -> bool:
            return all(topic["topic"] != name for topic in await client.describe_topics())

        await wait_until(is_gone, f"{name} is deleted")
    finally:
        await client.close()


async def make_again(address: str, name: str, partitions: int = 1) -> None:
    """Delete a topic and create it again under the same name."""
    await delete_topic(address, name)
    await create_topic(address, name, partitions)


async def produce_keys(address: str, topic: str, keys: Iterable[str]) -> None:
    """Send a record with a small payload for each key."""
    producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(bootstrap_servers=address)
    await producer.start()
    try:
        for key in keys:
            await producer.send(topic, b'{"delay": 86400}', key=key.encode())
        await producer.flush()
    finally:
        await producer.stop()


async def configure_topic(address: str, name: str, **config: object) -> None:
    """Give a topic another configuration, all of it; names as for `create_topic`."""
    configs = {key.replace("_", "."): str(value) for key, value in config.items()}
    client = _admin.AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()

    try:
        resource = importlib.import_module("aiokafka.admin.config_resource").ConfigResource("topic", name, configs)
        for answer in await client.alter_configs([resource]):
            for code, *said in answer.resources:
                if code:
                    raise _errors.for_code(code)(*said)
    finally:
        await client.close()


async def list_members(address: str, group: str) -> frozenset[str]:
    """Name the members of a group between which its partitions are shared; none while that is not settled."""
    client = _admin.AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()

    try:
        try:
            (answer,) = await client.describe_consumer_groups([group])
        except _errors.KafkaError:  # the group has no coordinator yet, or the broker is only just finding itself
            return frozenset()
        (code, _, state, _, _, members, *_) = answer.groups[0]
        return frozenset(member[0] for member in members) if not code and state == "Stable" else frozenset()
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is with one partition; `committed` is 0 where it has committed nothing."""

    committed: int
    end: int

    @property
    def lag(self) -> int:
        """Records, or markers, between the two."""
        return self.end - self.committed


async def read_progress(address: str, topic: str, group: str, partitions: int = 1) -> list[Progress]:
    """Tell how far a group is with each partition of a topic, as the broker knows it."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        wanted = [kafka.TopicPartition(topic, number) for number in range(partitions)]
        ends = await consumer.end_offsets(wanted)
        return [Progress(await consumer.committed(partition) or 0, ends[partition]) for partition in wanted]
    finally:
        await consumer.stop()


async def committed_lag(address: str, topic: str, group: str, partitions: int = 1) -> int:
    """Count the records, or markers, between what a group has committed and the end of a topic."""
    return sum(progress.lag for progress in await read_progress(address, topic, group, partitions))


async def read_records(address: str, topic: str, partition: int = 0) -> list[Any]:
    """Give the records that a partition has now, in order."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    await consumer.start()

    try:
        wanted = kafka.TopicPartition(topic, partition)
        records = list[Any]()
        consumer.assign([wanted])
        await consumer.seek_to_beginning(wanted)
        end = (await consumer.end_offsets([wanted]))[wanted]
        while await consumer.position(wanted) < end:
            records += (await consumer.getmany(timeout_ms=200)).get(wanted, [])
        return records
    finally:
        await consumer.stop()


async def commit(address: str, topic: str, group: str, positions: Mapping[int, int], note: str = "") -> None:
    """Commit offsets of a topic for a group that has no members, by partition, with a note beside them."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        wanted = {kafka.TopicPartition(topic, number): offset for number, offset in positions.items()}
        consumer.assign(list(wanted))
        await consumer.commit({partition: (offset, note) for partition, offset in wanted.items()})
    finally:
        await consumer.stop()
