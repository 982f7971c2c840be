"""What scenarios share: a fresh server, worker processes under measurement, tables, results with machine and date."""

import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any, TypeVar

import httpx
import psutil
from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from bench.bare_loop import start_bare
from bench.figures import RESULTS, write_figures
from bench.worker_process import KIND, Measured, Order
from cluster.cluster import Cluster
from cluster.postgres import CORE, VISIBILITY
from cluster.program import build_program
from examples.ledger import LEDGER_VARIABLE, Ledger
from shared.messages.envelope import Envelope
from shared.settings import Settings
from starter.local.embedded import EmbeddedOptions, EmbeddedServer, run_embedded
from starter.local.supervised_process import SupervisedProcess, find_free_port, kill_supervised, start_supervised
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome

Name = TypeVar("Name")
Contestant = TypeVar("Contestant")

STOP_SECONDS = 20.0

COLUMNS_MAX = 14
"""A table with more of them is printed upright."""

SHARDS = 16
CLUSTER_OPTION = "--cluster"
is_on_cluster = CLUSTER_OPTION in sys.argv
"""Scenarios run on Temporal's server with a PostgreSQL in place of the embedded one."""


@contextlib.asynccontextmanager
async def fresh_server(*, slim: bool = True, config: Sequence[str] = ()) -> AsyncGenerator[EmbeddedServer]:
    """Run a new embedded server on an empty database, thrown away afterwards; a cluster where that was asked for.

    `config` are dynamic settings (`name=value`) that count instead of the embedded server's own.
    """
    if is_on_cluster:
        assert slim, "a cluster has no other indexes than those that messages need"
        assert not config, "a cluster has the settings that it is started with"
        async with fresh_cluster() as server:
            yield server
            return

    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        options = EmbeddedOptions(
            data=Path(folder),
            port=find_free_port(),
            ui_port=None,
            slim=slim,
            extra_config=tuple(config),
        )
        async with run_embedded(options) as server:
            yield server


class ClusterServer(EmbeddedServer):
    """A cluster where scenarios expect the embedded server; it runs already, and nobody starts or stops it here."""

    def __init__(self, cluster: Cluster) -> None:
        """Take a cluster that is up."""
        assert cluster.state is not None
        metrics = cluster.state.ports["metrics"]
        super().__init__(EmbeddedOptions(data=cluster.folder, port=cluster.port, ui_port=None, metrics_port=metrics))
        self.cluster = cluster


@contextlib.asynccontextmanager
async def fresh_cluster() -> AsyncGenerator[ClusterServer]:
    """Run Temporal's server on a PostgreSQL of its own, thrown away afterwards; builds it first if need be."""
    program = await asyncio.to_thread(build_program)
    # PostgreSQL's own user must get there
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="dormice-bench-cluster-")))
    try:
        await cluster.up(program, SHARDS)
        yield ClusterServer(cluster)
    finally:
        await asyncio.to_thread(cluster.down, is_deleting=True)


def alternate(contestants: Mapping[Name, Contestant], number: int) -> dict[Name, Contestant]:
    """Give contestants in the order of round `number`: whatever slows with time slows both alike (A B, B A, …)."""
    pairs = list(contestants.items())
    ordered = pairs if number % 2 == 0 else reversed(pairs)
    return dict(ordered)


def new_prefix() -> str:
    """Name task queues that no other phase of the run uses."""
    return f"bench-{uuid.uuid4().hex[:8]}"


async def run_worker(server: EmbeddedServer, order: Order | str, folder: Path | None = None) -> Measured:
    """Measure one worker process against the server; raises RuntimeError with its last words when it fails.

    Its code is that of the checkout in `folder`, this one unless told; its order may be in the words of that code.
    """
    async with _measuring(server, order, folder) as worker:
        await worker.reading
        await worker.process.wait()
        worker.check()
    return worker.windows[-1]


@contextlib.asynccontextmanager
async def working(server: EmbeddedServer, order: Order) -> AsyncGenerator[list[Measured]]:
    """Run a worker process for the length of a `with` block; the list grows with each of its windows.

    Raises RuntimeError with its last words when it has failed meanwhile.
    """
    async with _measuring(server, order) as worker:
        yield worker.windows
        if worker.process.returncode is None:  # otherwise it has ended by itself, after the last of its windows
            worker.process.terminate()
            await asyncio.wait([worker.reading], timeout=STOP_SECONDS)
        else:
            worker.check()


@dataclass(frozen=True, slots=True)
class _WorkerProcess:
    process: asyncio.subprocess.Process
    errors: IO[bytes]
    windows: list[Measured]
    reading: asyncio.Task[None]

    def check(self) -> None:
        if self.process.returncode != 0:
            self.errors.seek(0)
            raise RuntimeError(f"the worker process failed: {self.errors.read().decode(errors='replace')[-500:]}")


@contextlib.asynccontextmanager
async def _measuring(
    server: EmbeddedServer, order: Order | str, folder: Path | None = None
) -> AsyncGenerator[_WorkerProcess]:
    """Run a worker process that is killed at the end of the `with` block, if it still runs then."""
    written = order if isinstance(order, str) else order.write()
    with tempfile.TemporaryFile() as errors:
        process = await start_supervised(
            [*_entering(folder), sys.executable, "-m", "bench.worker_process", written],
            asyncio.subprocess.PIPE,
            {**os.environ, "TEMPORAL_ADDRESS": server.address},
            errors=errors.fileno(),
        )
        windows: list[Measured] = []

        reading = asyncio.create_task(_read_windows(process, windows))
        try:
            yield _WorkerProcess(process, errors, windows, reading)
        finally:
            await kill_supervised(process)
            await asyncio.wait([reading])


def _entering(folder: Path | None) -> list[str]:
    """Give what comes before a command that is to run in another folder; its parent watch is this checkout's own."""
    return [] if folder is None else ["env", "-C", str(folder)]


async def _read_windows(process: asyncio.subprocess.Process, windows: list[Measured]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"{"):
            windows.append(Measured(**json.loads(line)))
        else:  # the SDK's core logs to standard output
            print(line.decode(errors="replace").rstrip(), file=sys.stderr)


@contextlib.asynccontextmanager
async def noting(server: EmbeddedServer, prefix: str, **extra: str) -> AsyncGenerator[Ledger]:
    """Run a worker for the length of a `with` block whose handlers keep a ledger, thrown away afterwards.

    `extra` is for its environment.
    """
    with tempfile.TemporaryDirectory(prefix="dormice-bench-ledger-") as folder:
        path = Path(folder, "ledger.jsonl")
        process = await start_supervised(
            [sys.executable, "-m", "worker", "--lane", "short", "--processes", "1"],
            asyncio.subprocess.DEVNULL,
            {
                **os.environ,
                "TEMPORAL_ADDRESS": server.address,
                "DORMICE_HANDLERS": "bench.handlers",
                "DORMICE_TASK_QUEUE_PREFIX": prefix,
                LEDGER_VARIABLE: str(path),
                **extra,
            },
        )

        try:
            yield Ledger(path)
        finally:
            await kill_supervised(process)


async def fill(client: Client, what: str, prefix: str, count: int, delay: float, *, cycles_per_run: int = 5) -> float:
    """Start `count` messages, or bare loops, that come back every `delay` seconds; gives the starts per second.

    `what` is "bare", "dormice" (due at once) or "asleep" (messages first due after `delay`).
    """
    ids = [str(i) for i in range(count)]
    loop = asyncio.get_running_loop()
    began = loop.time()

    if what == "bare":
        await start_bare(client, f"{prefix}-short", [f"{prefix}-{i}" for i in ids], delay=delay, cycles=cycles_per_run)
    else:
        settings = Settings(task_queue_prefix=prefix)
        due = datetime.now(UTC) + timedelta(seconds=delay) if what == "asleep" else None
        envelopes = (
            (None, Envelope(kind=KIND, id=f"{prefix}-{i}", lane="short", scheduled_at=due, payload={"delay": delay}))
            for i in ids
        )
        starter = BulkStarter(client, settings)
        async for receipt in starter.start_all(envelopes):
            assert receipt.outcome is StartOutcome.STARTED, receipt

    return count / (loop.time() - began)


def database_bytes(server: EmbeddedServer) -> int:
    """Give the size of the server's database with its write-ahead log; PostgreSQL's without."""
    if isinstance(server, ClusterServer):
        sizes = f"SELECT pg_database_size('{CORE}') + pg_database_size('{VISIBILITY}')"
        return int(server.cluster.postgres.run(sizes)[0])
    return sum(path.stat().st_size for path in server.options.data.glob("temporal.db*"))


async def kill_program(process: SupervisedProcess) -> None:
    """Kill a server's program, as `kill -9` does; it can be started again on what it has stored."""
    assert process.process_id is not None
    for program in psutil.Process(process.process_id).children():
        program.kill()
    await process.wait()
    await process.stop()


def processor_seconds(server: EmbeddedServer) -> float:
    """Give the processor time of the server's processes up to now."""
    return sum_cpu(psutil.Process(server.process_id))


def sum_cpu(process: psutil.Process) -> float:
    """Give the processor time of a process and all below it, those that have ended left out."""
    return sum(map(read_cpu, (process, *process.children(recursive=True))))


def read_cpu(process: psutil.Process) -> float:
    """Give the processor time of one process up to now; 0 when it has ended."""
    try:
        spent = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return spent.user + spent.system


async def metric_total(server: EmbeddedServer, name: str) -> float:
    """Sum a counter of the server's own metrics over all its labels."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(server.metrics_url)).text
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((name + "{", name + " "))
    )


class BadArgument(Exception):
    """A scenario does not know an argument; says so in a sentence."""


def choose(arguments: Sequence[str], known: Collection[str], what: str = "case") -> list[str]:
    """Give the names that are given, or all that are known without any; raises BadArgument for another name."""
    if strange := [name for name in arguments if name not in known]:
        raise BadArgument(f"there is no {what} '{strange[0]}'; use any of {', '.join(known)}")
    return list(arguments or known)


def read_count(arguments: Sequence[str], default: int) -> int:
    """Give the number that is given first, or the default; raises BadArgument for what is no whole number above 0."""
    if not arguments:
        return default
    digits = arguments[0].replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit() and int(digits)):
        raise BadArgument(f"'{arguments[0]}' is no whole number above 0; give for example {default}")
    return int(digits)


def report(scenario: str, rows: Sequence[Mapping[str, Any]], note: str = "", case: str = "") -> None:
    """Print the rows as a table and keep them as JSON with the machine, the date and the command."""
    case = f"{case} {CLUSTER_OPTION}".strip() if is_on_cluster else case
    command = f"{scenario} {case}".strip()
    table = Table(title=command, caption=note or None)

    if len(rows[0]) > COLUMNS_MAX:
        _fill_upright(table, rows)
    else:
        _fill_flat(table, rows)

    Console(width=140).print(table)
    RESULTS.mkdir(exist_ok=True)
    document = {
        "scenario": scenario,
        "command": f"./run bench {command}",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "note": note,
        "rows": [dict(row) for row in rows],
    }
    path = RESULTS / f"{'-'.join([scenario, *case.replace('--', '').split()])}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    write_figures()
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    print(f"kept in {shown}", file=sys.stderr)


def _fill_flat(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for column in rows[0]:
        justify = "left" if isinstance(rows[0][column], str) else "right"
        table.add_column(column, justify=justify)
    for row in rows:
        table.add_row(*(_show(value) for value in row.values()))


def _fill_upright(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Fill a table with a line for each field, and a column for each row."""
    first, *fields = rows[0]
    table.add_column(first)
    for row in rows:
        table.add_column(_show(row[first]), justify="right")
    for name in fields:
        table.add_row(name, *(_show(row[name]) for row in rows))


def _show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
