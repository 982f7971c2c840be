"""How the demonstration's messages come to the server: directly, with Spark, or through Kafka and the bridge."""

import asyncio
import contextlib
import importlib
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.messages import PACKED_KIND, choose_pack
from shared.errors import InvalidSetting, Misconfigured, RetryLater
from shared.kafka.safe_producer import open_admin
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import BrokerOptions, run_broker
from starter.local.supervised_process import find_free_port, last_line, run_supervised
from starter.starting.bulk import BulkStarter
from starter.starting.layouts import Layouts
from starter.starting.receipts import StartOutcome

TOPIC = "demo"
PARTITIONS = 4
BRIDGE = (sys.executable, "-m", "starter", "bridge", TOPIC, "--group", TOPIC, "--drain-seconds", "5")
STOP_SECONDS = 8.0
LOOK_SECONDS = 0.5
SPARK_JOB = (sys.executable, "-m", "examples.spark_job")

# a process of some seconds ends before better compilation pays off
SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


async def start_directly(server: EmbeddedServer, envelopes: Sequence[Envelope]) -> None:
    """Start every message with the bulk starter."""
    settings = Settings(pack_room=len(envelopes) + 1)
    encodings = {PACKED_KIND: choose_pack(len(envelopes))}
    starter = BulkStarter(await server.connect(), settings, encodings=encodings)
    async for receipt in starter.start_all((None, envelope) for envelope in envelopes):
        if receipt.outcome is not StartOutcome.STARTED:
            raise RuntimeError(f"{receipt.workflow_id} was not started: {receipt.outcome.value} {receipt.reason}")


async def start_with_spark(folder: Path, environment: Mapping[str, str], envelopes: Sequence[Envelope]) -> None:
    """Write messages as rows, then prepare and start them; raises RetryLater with Spark's last line when it fails."""
    rows = folder / "messages.jsonl"
    log = folder / "spark.log"
    lines = [envelope.model_dump_json(exclude_defaults=True) for envelope in envelopes]
    await asyncio.to_thread(rows.write_text, "\n".join(lines), "utf-8")
    command = [*SPARK_JOB, str(rows), str(folder / "manifest")]
    async with run_supervised(command, log, {**SHORT_LIVED, **environment}, stop_seconds=STOP_SECONDS) as job:
        code = await job.wait()

    if code:
        raise RetryLater(f"Spark has ended with {code}: {last_line(log.read_text(errors='replace'))}")


@dataclass(frozen=True, slots=True)
class Gate:
    """The entrance for messages: the broker's address, and the bridge that reads from it."""

    address: str
    bridge: asyncio.subprocess.Process
    log: Path

    async def start_all(self, server: EmbeddedServer, envelopes: Sequence[Envelope]) -> None:
        """Send every message to the topic, and return when the bridge has started all of them on the server."""
        if envelopes[0].kind == PACKED_KIND:
            # the bridge reads on the server how the kind is packed
            encodings = {PACKED_KIND: choose_pack(len(envelopes))}
            await Layouts(await server.connect(), Settings(), encodings).ensure(PACKED_KIND, "short")

        producer: Any = importlib.import_module("aiokafka").AIOKafkaProducer(bootstrap_servers=self.address)
        await producer.start()

        try:
            for envelope in envelopes:
                value = envelope.model_dump_json(exclude_defaults=True).encode()
                await producer.send(TOPIC, value, key=envelope.id.encode())
        finally:
            await producer.stop()

        while await self._is_behind():
            if self.bridge.returncode is not None:
                said = last_line(self.log.read_text(errors="replace"))
                raise Misconfigured(f"the bridge has ended by itself: {said}")
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_behind(self) -> bool:
        from starter.bridge.group_lag import read_group_lag  # noqa: PLC0415 — needs aiokafka

        try:
            return (await read_group_lag({"bootstrap_servers": self.address}, TOPIC, [TOPIC])).lag > 0
        except InvalidSetting:  # the bridge has not joined its group yet
            return True


@contextlib.asynccontextmanager
async def open_gate(folder: Path, environment: Mapping[str, str]) -> AsyncGenerator[Gate]:
    """Run a broker with an empty topic, and a bridge that reads from it, for a `with` block."""
    async with run_broker(BrokerOptions(data=folder / "kafka", port=find_free_port())) as broker:
        new_topic: Any = importlib.import_module("aiokafka.admin").NewTopic
        async with open_admin({"bootstrap_servers": broker.address}) as admin:
            await admin.create_topics([new_topic(TOPIC, PARTITIONS, 1)])
        # the user's own broker and login are not for the demonstration
        own = {name: value for name, value in environment.items() if not name.startswith("DORMICE_KAFKA_")}
        own["DORMICE_KAFKA_SERVERS"] = broker.address
        log = folder / "bridge.log"
        async with run_supervised(BRIDGE, log, own, stop_seconds=STOP_SECONDS) as bridge:
            yield Gate(broker.address, bridge, log)
