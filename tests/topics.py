"""Topics for tests on a real broker, which makes none by itself."""

import importlib
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


async def committed_lag(address: str, topic: str, group: str, partitions: int = 1) -> int:
    """Count the records, or markers, between what a group has committed and the end of a topic."""
    kafka: Any = importlib.import_module("aiokafka")
    consumer = kafka.AIOKafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        wanted = [kafka.TopicPartition(topic, number) for number in range(partitions)]
        ends = await consumer.end_offsets(wanted)
        return sum([ends[partition] - (await consumer.committed(partition) or 0) for partition in wanted])
    finally:
        await consumer.stop()
