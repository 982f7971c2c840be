"""The contestants' servers, each real and thrown away afterwards: Redis, Kafka, PostgreSQL, Temporal."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Protocol

from bench.harness import fresh_server, kill_program
from bench.peers.contestants import CONTESTANTS, KAFKA, POSTGRES, REDIS, TABLE, TEMPORAL
from cluster.cluster import POSTGRES_SETTINGS
from cluster.postgres import Postgres
from shared.errors import Misconfigured
from starter.local.embedded import EmbeddedServer
from starter.local.kafka.broker import BrokerOptions, EmbeddedBroker, run_broker
from starter.local.supervised_process import (
    SupervisedProcess,
    find_free_port,
)

START_SECONDS = 20.0


class Server(Protocol):
    """A server that can be killed and started again."""

    def address(self, contestant: str) -> str:
        """Where a contestant connects."""
        ...

    async def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        ...

    async def start(self) -> None:
        """Start it again on what it has stored."""
        ...


def find_redis() -> str:
    """Give the path of Redis; raises Misconfigured where there is none."""
    found = shutil.which("redis-server")
    if found is None:
        raise Misconfigured("peers: there is no redis-server on the PATH; install Debian's package of that name")
    return found


class RedisServer(SupervisedProcess):
    """Redis with an append-only file, written through once a second as is usual."""

    def __init__(self, folder: Path) -> None:
        super().__init__("redis", find_free_port(), folder / "redis.log", None)
        self._folder = folder

    async def _begin(self) -> bool:
        command = [find_redis(), "--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(self._folder)]
        command += ["--appendonly", "yes", "--save", ""]

        async def is_ready() -> bool:  # while it reads its file it takes connections, and answers with LOADING
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(b"PING\r\n")
            answer = await reader.readline()
            writer.close()
            return answer.startswith(b"+PONG")

        return await self._serves(command, is_ready, START_SECONDS)


class _Supervised:
    def __init__(self, process: SupervisedProcess, scheme: str = "") -> None:
        self._process = process
        self._scheme = scheme

    def address(self, contestant: str) -> str:  # noqa: ARG002 — one for all
        return f"{self._scheme}{self._process.address}"

    async def kill(self) -> None:
        await kill_program(self._process)

    async def start(self) -> None:
        await self._process.start()


class _Database:
    """PostgreSQL with a database for each contestant."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres

    def address(self, contestant: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._postgres.port}/{contestant}"

    async def kill(self) -> None:
        await asyncio.to_thread(self._postgres.kill)

    async def start(self) -> None:
        await asyncio.to_thread(self._postgres.start)


@contextlib.asynccontextmanager
async def run_servers() -> AsyncGenerator[Mapping[str, Server]]:
    """Run all servers for the length of a `with` block."""
    folder = await asyncio.to_thread(_make_folder)
    postgres = Postgres(folder / "postgres", find_free_port(), POSTGRES_SETTINGS)
    broker = BrokerOptions(data=folder / "kafka", port=find_free_port())

    try:
        await asyncio.to_thread(postgres.start)
        for contestant in [*CONTESTANTS, TABLE]:
            if POSTGRES in contestant.servers:
                postgres.run(f'CREATE DATABASE "{contestant.name}"')
        async with RedisServer(folder / "redis") as redis, run_broker(broker) as kafka, fresh_server() as temporal:
            yield _name(redis, kafka, temporal, postgres)
    finally:
        await asyncio.to_thread(postgres.stop, "immediate")
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dormice-bench-peers-"))
    folder.chmod(0o755)  # PostgreSQL's own user must get there
    (folder / "redis").mkdir()
    return folder


def _name(
    redis: RedisServer, kafka: EmbeddedBroker, temporal: EmbeddedServer, postgres: Postgres
) -> Mapping[str, Server]:
    return {
        REDIS: _Supervised(redis, "redis://"),
        KAFKA: _Supervised(kafka),
        TEMPORAL: _Supervised(temporal),
        POSTGRES: _Database(postgres),
    }
