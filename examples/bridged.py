"""The demonstration's way through Kafka: a broker, a topic of envelopes, and the real bridge to the server."""

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import Misconfigured
from shared.kafka.safe_producer import open_admin
from shared.messages.envelope import Envelope
from starter.local.embedded import find_free_port
from starter.local.kafka.broker import BrokerOptions, run_broker
from starter.local.supervised_process import start_supervised, stop_supervised

TOPIC = "demo"
PARTITIONS = 4
DRAIN_SECONDS = 8.0
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Gate:
    """The entrance for messages: the broker's address, and the bridge that reads from it."""

    address: str
    bridge: asyncio.subprocess.Process
    log: Path

    async def start_all(self, envelopes: Sequence[Envelope]) -> None:
        """Send every message to the topic, and return when the bridge has started all of them on the server."""
        producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(bootstrap_servers=self.address)
        await producer.start()
        try:
            for envelope in envelopes:
                value = envelope.model_dump_json(exclude_defaults=True).encode()
                await producer.send(TOPIC, value, key=envelope.id.encode())
        finally:
            await producer.stop()
        while await self._count_committed() < len(envelopes):
            if self.bridge.returncode is not None:
                said = await asyncio.to_thread(self.log.read_text, errors="replace")
                raise Misconfigured(f"the bridge has ended by itself: {said.strip().rpartition(chr(10))[2][:300]}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _count_committed(self) -> int:
        kafka: Any = importlib.import_module("aiokafka")
        consumer = kafka.AIOKafkaConsumer(bootstrap_servers=self.address, group_id=TOPIC, enable_auto_commit=False)
        await consumer.start()
        try:
            partitions = [kafka.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            return sum([await consumer.committed(partition) or 0 for partition in partitions])
        finally:
            await consumer.stop()


@contextlib.asynccontextmanager
async def open_gate(folder: str, environment: Mapping[str, str]) -> AsyncGenerator[Gate]:
    """Run a broker with an empty topic, and a bridge that reads from it, for a `with` block."""
    options = BrokerOptions(data=Path(folder, "kafka"), port=find_free_port())
    async with run_broker(options) as broker:
        new_topic: Any = importlib.import_module("aiokafka.admin").NewTopic
        async with open_admin({"bootstrap_servers": broker.address}) as admin:
            await admin.create_topics([new_topic(TOPIC, PARTITIONS, 1)])
        # the user's own broker and login are not for the demonstration
        own = {name: value for name, value in environment.items() if not name.startswith("DORMICE_KAFKA_")}
        command = [sys.executable, "-m", "starter", "bridge", TOPIC, "--group", TOPIC, "--drain-seconds", "5"]
        log = Path(folder, "bridge.log")
        with log.open("wb") as output:  # noqa: ASYNC230 — once, before anything runs
            bridge = await start_supervised(command, output.fileno(), {**own, "DORMICE_KAFKA_SERVERS": broker.address})
        try:
            yield Gate(broker.address, bridge, log)
        finally:
            await stop_supervised(bridge, DRAIN_SECONDS)
