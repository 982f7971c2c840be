"""The embedded broker: Apache Kafka itself as one process on loopback, for one machine and for tests."""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import DormiceError, InvalidSetting, check_extra
from shared.kafka.connection import check_broker
from shared.settings import Settings
from starter.local.kafka.jars import find_cache, prepare_jars
from starter.local.kafka.java import find_java
from starter.local.supervised_process import SupervisedProcess, check_free, find_free_port, lock_folder

START_SECONDS = 60.0
RECORDS = "records"  # the folder of topics
JAVA_OPTIONS = (
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # at each end it warns that it is closed twice, which would hide the reason of an unexpected end
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.NetworkClient=error",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss,SSS",
)
FORMAT_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a program that runs for a second: thorough compilation would cost more than it gains."""

# A cluster of one: everything has one replica, and internal topics need one partition, with no brokers to share them.
# The log cleaner's table of keys would take half of the heap by default. A killed broker can join again only when its
# old session has expired: after 9 s by default.
PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
}
LISTS = ("listeners", "listener.security.protocol.map")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Where the broker keeps its records and which loopback port it takes.

    `extra_properties` have Kafka's own names: "listeners" and "listener.security.protocol.map" are added to the
    plain listener, which stays; any other replaces our value.
    """

    data: Path
    port: int = 9092
    extra_properties: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self.data / "kafka.log"

    @property
    def properties(self) -> Path:
        """The broker's own settings, written anew at each start."""
        return self.data / "server.properties"


def check_extras() -> None:
    """Raise Misconfigured when a package is missing that the broker needs."""
    check_extra("embedded-kafka", "the embedded broker", "aiokafka", "pyspark")


@contextlib.asynccontextmanager
async def run_broker(options: BrokerOptions) -> AsyncGenerator["EmbeddedBroker"]:
    """Run the broker for the length of a `with` block; records survive the block, a kill and a restart.

    The first run on a machine fetches Kafka. Raises InvalidSetting when the port is taken or the folder can't be
    used, Misconfigured when something is missing or the broker won't start, RetryLater when Kafka can't be fetched.
    """
    check_extras()
    with lock_folder(options.data) as lock:
        check_free("kafka", options.port)
        async with EmbeddedBroker(options, lock) as broker:
            yield broker


class EmbeddedBroker(SupervisedProcess):
    """One running broker process."""

    def __init__(self, options: BrokerOptions, lock: int | None = None) -> None:
        super().__init__("broker", options.port, options.log, lock)
        self.options = options

    async def _begin(self) -> bool:
        java = await asyncio.to_thread(find_java)
        jars = await prepare_jars(java, find_cache())
        command = [str(java), *JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
        _write_properties(self.options, self.address)
        if not await self._has_folder(command):
            return False
        command += ["kafka.Kafka", str(self.options.properties)]
        return await self._serves(command, self._has_joined, START_SECONDS)

    async def _has_folder(self, command: list[str]) -> bool:
        """Format the folder unless it has meta.properties, which is written last; says whether it has it now."""
        mark = self.options.data / RECORDS / "meta.properties"
        if not mark.exists():
            tool = [*FORMAT_OPTIONS, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
            tool += [f"--cluster-id={secrets.token_urlsafe(16)}", "--config", str(self.options.properties)]
            await (await self._launch([*command, *tool])).wait()
        return mark.exists()

    async def _has_joined(self) -> bool:
        with contextlib.suppress(DormiceError):
            await check_broker(Settings(kafka_servers=self.address))
            return True
        return False


def _write_properties(options: BrokerOptions, address: str) -> None:
    records = str((options.data / RECORDS).absolute())
    if "," in records:
        raise InvalidSetting(f"--data: {options.data} has a comma in its path, where Kafka reads two; choose another")

    controller = find_free_port()
    wanted = {
        **PROPERTIES,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": records,
    }

    for name, value in options.extra_properties.items():
        wanted[name] = f"{wanted[name]},{value}" if name in LISTS else value

    options.properties.touch(mode=0o600)  # listeners may have passwords
    # the format reads \uXXXX and doubled backslashes as JSON does, and otherwise only Latin-1
    options.properties.write_text("".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in wanted.items()))
