"""The system under test: server, broker, two workers, a bridge and a Spark start, each a process of its own."""

import asyncio
import contextlib
import signal
import sqlite3
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client

from chaos.faults import CLUSTER, TASK_TIMEOUT_SECONDS, WORKERS
from chaos.ledger import LEDGER_VARIABLE, Ledger
from chaos.load.records import TOPIC
from chaos.load.site import SITE_VARIABLE, run_site
from chaos.system.clustered import SHARDS, ClusterServerPart, PostgresPart
from chaos.system.disk import Disk, mount_disk
from chaos.system.processes import OwnedPart, Part, ProgramPart, make_environment
from chaos.system.spark_start import SparkStart
from cluster.cluster import Cluster
from cluster.postgres import CORE
from cluster.program import build_program
from shared.settings import Settings
from shared.temporal.connect import client_options
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.kafka.broker import BrokerOptions, run_broker
from starter.local.supervised_process import find_free_port

PREFIX = "chaos"
SETTINGS = Settings(
    task_queue_prefix=PREFIX,
    workflow_task_timeout=timedelta(seconds=TASK_TIMEOUT_SECONDS),
    patience=timedelta(minutes=5),
)
CACHED_WORKFLOWS = 32
"""Messages and packs that a worker keeps in memory on a lane: the fewest, so that hardly one that wakes is there."""

WORKER = ("-m", "worker", "--lane", "short", "--lane", "medium", "--processes", "1", "--drain-seconds", "3")
BRIDGE = ("-m", "starter", "bridge", TOPIC, "--group", TOPIC, "--session-seconds", "6", "--drain-seconds", "5")
COUNT_TASKS = "SELECT count(*) FROM transfer_tasks"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The parts of the system by name, and how to reach them."""

    parts: dict[str, Part]
    address: str
    broker_address: str
    disk: Disk | None
    spark: SparkStart
    count_tasks: Callable[[], int]
    """Gives the number of transfer tasks that the server keeps."""
    metrics_url: str
    """Where the server tells its own metrics."""

    async def connect(self) -> Client:
        """Connect to the server."""
        return await Client.connect(self.address, **client_options(SETTINGS))

    async def continue_all(self) -> None:
        """Continue all stopped processes, so that they can be ended."""
        for part in self.parts.values():
            part.send(signal.SIGCONT)


@contextlib.asynccontextmanager
async def run_system(
    kind: str, folder: Path, ledger: Ledger, minutes: float, spark_messages: int
) -> AsyncGenerator[System]:
    """Run all parts except the Spark start for a `with` block, with their files in `folder`."""
    async with contextlib.AsyncExitStack() as stack:
        running = _run_cluster(folder) if kind == CLUSTER else _run_server(folder)
        place = await stack.enter_async_context(running)
        parts = place.parts
        options = BrokerOptions(data=folder / "kafka", port=find_free_port())
        broker = await stack.enter_async_context(run_broker(options))
        site = await stack.enter_async_context(run_site())
        environment = make_environment(
            TEMPORAL_ADDRESS=place.address,
            DORMICE_HANDLERS="chaos.load.handlers",
            DORMICE_TASK_QUEUE_PREFIX=PREFIX,
            DORMICE_WORKFLOW_TASK_TIMEOUT=f"{TASK_TIMEOUT_SECONDS:g}s",
            DORMICE_CACHED_WORKFLOWS=str(CACHED_WORKFLOWS),
            DORMICE_HTTP_ALLOW_PRIVATE="true",
            DORMICE_KAFKA_SERVERS=broker.address,
            **{LEDGER_VARIABLE: str(ledger.path), SITE_VARIABLE: site},
        )
        parts["broker"] = OwnedPart("broker", broker)

        for name in WORKERS:
            log = folder / f"{name.replace(' ', '-')}.log"
            parts[name] = ProgramPart(name, WORKER, environment, log)

        parts["bridge"] = ProgramPart("bridge", BRIDGE, environment, folder / "bridge.log")
        spark = SparkStart(folder, environment, spark_messages, minutes)
        parts["spark"] = spark.part
        system = System(
            parts=parts,
            address=place.address,
            broker_address=broker.address,
            disk=place.disk,
            spark=spark,
            count_tasks=place.count_tasks,
            metrics_url=place.metrics_url,
        )
        stack.push_async_callback(_end_programs, parts)
        stack.push_async_callback(system.continue_all)
        yield system


async def _end_programs(parts: dict[str, Part]) -> None:
    await asyncio.gather(*(part.end() for part in parts.values() if isinstance(part, ProgramPart)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A server that runs, and what of it faults may hit."""

    address: str
    parts: dict[str, Part]
    disk: Disk | None
    count_tasks: Callable[[], int]
    metrics_url: str


@contextlib.asynccontextmanager
async def _run_server(folder: Path) -> AsyncGenerator[_Place]:
    with mount_disk(folder / "server") as disk:
        options = EmbeddedOptions(data=folder / "server", port=find_free_port(), ui_port=None)

        def count_tasks() -> int:
            database = sqlite3.connect(f"file:{options.database}?mode=ro", uri=True)
            with contextlib.closing(database):
                return database.execute(COUNT_TASKS).fetchone()[0]

        async with run_embedded(options) as server:
            yield _Place(
                address=server.address,
                parts={"server": OwnedPart("server", server)},
                disk=disk,
                count_tasks=count_tasks,
                metrics_url=server.metrics_url,
            )


@contextlib.asynccontextmanager
async def _run_cluster(folder: Path) -> AsyncGenerator[_Place]:
    program = await asyncio.to_thread(build_program)
    await asyncio.to_thread(folder.chmod, 0o755)  # PostgreSQL's own user needs access

    cluster = Cluster(folder / "cluster")
    try:
        await asyncio.to_thread(asyncio.run, cluster.up(program, SHARDS))
        server = ClusterServerPart(cluster, program)
        parts: dict[str, Part] = {"postgres": PostgresPart(cluster), "server": server}
        yield _Place(
            address=cluster.address,
            parts=parts,
            disk=None,
            count_tasks=lambda: int(cluster.postgres.run(COUNT_TASKS, CORE)[0]),
            metrics_url=cluster.metrics_url,
        )
    finally:
        await asyncio.to_thread(cluster.down, is_deleting=True)
