"""The embedded broker: Apache Kafka itself as one process on loopback, for one machine and for tests."""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.errors import InvalidSetting, Misconfigured
from starter.local.embedded import (
    check_free,
    end_on_leash,
    find_free_port,
    hold_folder,
    is_answered,
    kill_on_leash,
    start_on_leash,
)
from starter.local.kafka.jars import find_cache, prepare_jars
from starter.local.kafka.java import find_java

START_SECONDS = 60.0
STOP_SECONDS = 15.0
ASK_MILLISECONDS = 10_000
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
    def records(self) -> Path:
        """The folder of topics and records."""
        return self.data / "records"

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self.data / "kafka.log"

    @property
    def properties(self) -> Path:
        """The broker's own settings, written anew at each start."""
        return self.data / "server.properties"

    @property
    def address(self) -> str:
        """Where the broker answers, on loopback only."""
        return f"127.0.0.1:{self.port}"


def check_extras() -> None:
    """Raise Misconfigured when a package is missing that the broker needs."""
    for package in ("aiokafka", "pyspark"):
        if importlib.util.find_spec(package) is None:
            raise Misconfigured(
                f"the embedded broker needs the package {package}, which is not installed; "
                "install dormice with its extras 'kafka' and 'embedded-kafka'"
            )


@contextlib.asynccontextmanager
async def run_broker(options: BrokerOptions) -> AsyncGenerator["EmbeddedBroker"]:
    """Run the broker for the length of a `with` block; records survive the block, a kill and a restart.

    The first run on a machine fetches Kafka. Raises InvalidSetting when the port is taken or the folder can't be
    used, Misconfigured when something is missing or the broker won't start, RetryLater when Kafka can't be fetched.
    """
    check_extras()
    with hold_folder(options.data) as lock:
        check_free("kafka", options.port)
        broker = EmbeddedBroker(options, lock)
        await broker.start()
        try:
            yield broker
        finally:
            await broker.stop()


class EmbeddedBroker:
    """One running broker process, under a parent watch so that it never outlives this process."""

    def __init__(self, options: BrokerOptions, lock: int | None = None) -> None:
        """Take the options; `lock` is a file descriptor that stays open for as long as the process lives."""
        self.options = options
        self._lock = lock
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.options.address

    @property
    def process_id(self) -> int | None:
        """Process id of the broker's parent watch, None while it is down."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it answers requests; prepares its folder if that is new."""
        java = await asyncio.to_thread(find_java)
        jars = await prepare_jars(java, find_cache())
        command = [str(java), *JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, jars))]
        _write_properties(self.options)
        old = self.options.log.stat().st_size if self.options.log.exists() else 0
        try:
            is_ready = await self._has_folder(command) and await self._serves(command)
        except BaseException:
            await self.stop()
            raise
        if not is_ready:
            await self.stop()
            raise Misconfigured(
                f"the embedded broker did not start; read {self.options.log}: {_last_word(self.options.log, old)}"
            )

    async def stop(self) -> None:
        """End the process; returns when it is gone."""
        if self._process is not None:
            await end_on_leash(self._process, STOP_SECONDS)
            self._process = None

    async def kill(self) -> None:
        """End the process and its parent watch with SIGKILL, for tests of a crash; returns when it is gone."""
        if self._process is not None:
            await kill_on_leash(self._process)
            self._process = None
            while is_answered(self.options.port):  # noqa: ASYNC110 — no event for the end of a child's child
                await asyncio.sleep(0.01)

    async def wait(self) -> int:
        """Wait until the process ends, by itself or not; gives its exit code."""
        return 0 if self._process is None else await self._process.wait()

    async def _has_folder(self, command: list[str]) -> bool:
        """Format the folder unless it has meta.properties, which is written last; says whether it has it now."""
        mark = self.options.records / "meta.properties"
        if not mark.exists():
            tool = [*FORMAT_OPTIONS, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
            tool += [f"--cluster-id={secrets.token_urlsafe(16)}", "--config", str(self.options.properties)]
            await self._launch([*command, *tool])
            await self.wait()
        return mark.exists()

    async def _launch(self, command: list[str]) -> None:
        with self.options.log.open("ab") as output:
            self._process = await start_on_leash(command, output.fileno(), keep=self._lock)

    async def _serves(self, command: list[str]) -> bool:
        """Start the broker itself and wait until clients can use it."""
        await self._launch([*command, "kafka.Kafka", str(self.options.properties)])
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if self._process is None or self._process.returncode is not None:
                return False
            # aiokafka logs an error for each failed attempt, so a plain socket tries first
            if is_answered(self.options.port) and await _has_joined(self.address):
                return True
            await asyncio.sleep(0.05)
        return False


async def _has_joined(address: str) -> bool:
    """Say whether the broker answers a metadata request and lists itself: from then on it serves."""
    client: Any = importlib.import_module("aiokafka.client").AIOKafkaClient(
        bootstrap_servers=address, request_timeout_ms=ASK_MILLISECONDS
    )
    errors: Any = importlib.import_module("aiokafka.errors")
    try:
        await client.bootstrap()
        return bool(client.cluster.brokers())
    except errors.KafkaError:
        return False
    finally:
        await client.close()


def _write_properties(options: BrokerOptions) -> None:
    if "," in str(options.records.absolute()):
        raise InvalidSetting(f"--data: {options.data} has a comma in its path, where Kafka reads two; choose another")
    controller = find_free_port()
    wanted = {
        **PROPERTIES,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{options.address},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": str(options.records.absolute()),
    }
    for name, value in options.extra_properties.items():
        wanted[name] = f"{wanted[name]},{value}" if name in LISTS else value
    options.properties.touch(mode=0o600)  # listeners may have passwords
    # the format reads \uXXXX and doubled backslashes as JSON does, and otherwise only Latin-1
    options.properties.write_text("".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in wanted.items()))


def _last_word(log: Path, old: int) -> str:
    """Give the last line after byte `old` that is not indented: the indented ones are stack traces."""
    with log.open("rb") as file:
        file.seek(old)
        lines = file.read().decode(errors="replace").splitlines()
    said = [line for line in lines if line and not line[0].isspace()]
    return said[-1][:300] if said else "it says nothing"
