"""What the parts of the scenario `bridge` share: servers, a broker, records, and a bridge process that is followed."""

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from bench.handlers import KIND_VARIABLE, PACKS_VARIABLE
from bench.harness import fresh_server
from shared.messages.envelope import Envelope
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised

PARTITIONS = 4
LOOK_SECONDS = 0.2
DRAIN_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A server and a broker, both empty at first and thrown away afterwards."""

    server: EmbeddedServer
    broker: EmbeddedBroker


@dataclass(frozen=True, slots=True)
class Sample:
    """What a look at the bridge showed, at a monotonic moment."""

    at: float
    committed: int
    rss_bytes: int
    cpu_seconds: float


@contextlib.asynccontextmanager
async def fresh_stage() -> AsyncGenerator[Stage]:
    """Run a new server and a new broker for the length of a `with` block."""
    with tempfile.TemporaryDirectory(prefix="dormice-bench-kafka-") as folder:
        options = BrokerOptions(data=Path(folder), port=find_free_port())
        async with fresh_server() as server, run_broker(options) as broker:
            yield Stage(server, broker)


@contextlib.asynccontextmanager
async def open_topic(stage: Stage, topic: str) -> AsyncGenerator[Any]:
    """Make a topic; gives a producer for it."""
    admin: Any = AIOKafkaAdminClient(bootstrap_servers=stage.broker.address)
    producer: Any = AIOKafkaProducer(bootstrap_servers=stage.broker.address, linger_ms=5)
    await admin.start()

    try:
        await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    finally:
        await admin.close()

    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def produce(producer: Any, topic: str, envelopes: Iterable[Envelope]) -> int:
    """Send envelopes by their ids; all are at the broker when this returns. Gives their number."""
    count = 0
    for envelope in envelopes:
        value = envelope.model_dump_json(exclude_defaults=True).encode()
        await producer.send(topic, value, key=envelope.id.encode())
        count += 1
    await producer.flush()
    return count


class Follower:
    """Samples a bridge process and what its group has committed five times a second, from its first commit on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.samples: list[Sample] = []
        self.start_seconds = 0.0
        """Processor time that such a bridge takes until it consumes, if somebody has measured it."""

    @property
    def committed(self) -> int:
        """Records the bridge needs no more, up to now."""
        return self.samples[-1].committed if self.samples else 0

    @property
    def rss_bytes(self) -> int:
        """The most memory it had."""
        return max((sample.rss_bytes for sample in self.samples), default=0)

    @property
    def rate(self) -> float:
        """Records a second between the first and the last commit; each commit is seen up to a second late."""
        changes = [b for a, b in zip(self.samples, self.samples[1:], strict=False) if b.committed > a.committed]
        if not changes:
            return 0.0
        first = self.samples[0]
        last = changes[-1]
        return (last.committed - first.committed) / (last.at - first.at)

    @property
    def cpu_us(self) -> float:
        """Its own processor time for each record in microseconds, up to the first look after the last commit."""
        last = next((sample for sample in self.samples if sample.committed == self.committed), None)
        return (last.cpu_seconds - self.start_seconds) / last.committed * 1e6 if last is not None else 0.0

    async def wait_until_committed(self, count: int, seconds: float = 1800.0) -> None:
        """Wait until `count` records are done with; raises TimeoutError, RuntimeError when the bridge ends."""
        await self._wait(lambda: self.committed >= count, seconds)

    async def wait_until_consuming(self, seconds: float = 60.0) -> Sample:
        """Give the first sample, which needs a commit, also where there are no records; raises like the other wait."""
        await self._wait(lambda: bool(self.samples), seconds)
        return self.samples[0]

    async def _wait(self, is_reached: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while not is_reached():
                if self.process.returncode is not None:
                    raise RuntimeError(f"the bridge process ended with code {self.process.returncode}")
                await asyncio.sleep(LOOK_SECONDS)

    async def follow(self, stage: Stage, topic: str) -> None:
        """Look until cancelled."""
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer: Any = AIOKafkaConsumer(
            bootstrap_servers=stage.broker.address, group_id=topic, enable_auto_commit=False
        )
        await consumer.start()

        try:
            while True:
                committed = [await consumer.committed(partition) for partition in partitions]
                if any(position is not None for position in committed):
                    with contextlib.suppress(psutil.NoSuchProcess, ValueError):  # it has just ended
                        (bridge,) = psutil.Process(self.process.pid).children()
                        rss = bridge.memory_info().rss
                        times = bridge.cpu_times()
                        count = sum(at or 0 for at in committed)
                        cpu = times.user + times.system
                        self.samples.append(Sample(time.monotonic(), count, rss, cpu))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await consumer.stop()


@contextlib.asynccontextmanager
async def bridging(stage: Stage, topic: str, kind: str, *arguments: str, packs: int = 0) -> AsyncGenerator[Follower]:
    """Run `dormice bridge` on a topic; its group and its task queues have the topic's name.

    It drains at the end, and is killed when that takes too long.
    """
    with tempfile.TemporaryFile() as log:
        process = await start_supervised(
            [sys.executable, "-m", "starter", "bridge", topic, "--group", topic, *arguments],
            log.fileno(),
            {
                **os.environ,
                "TEMPORAL_ADDRESS": stage.server.address,
                "DORMICE_KAFKA_SERVERS": stage.broker.address,
                "DORMICE_HANDLERS": "bench.handlers",
                "DORMICE_TASK_QUEUE_PREFIX": topic,
                KIND_VARIABLE: kind,
                PACKS_VARIABLE: str(packs),
            },
        )
        follower = Follower(process)
        following = asyncio.create_task(follower.follow(stage, topic))

        try:
            yield follower
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        await process.wait()
        except RuntimeError as exc:
            log.seek(0)
            raise RuntimeError(f"{exc}: {log.read().decode(errors='replace')[-500:]}") from exc
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await kill_supervised(process)
