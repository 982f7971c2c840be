"""What messages cost PostgreSQL and the server: transactions, log, disk and processor time of a start and of a cycle.

On a cluster made for the run: `./run cluster up` builds the server it needs. The embedded server runs the same loads in
the same run. Solo messages are cold, and more are due than the machine can do; packs come back at a rhythm.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import httpx
import psutil

from bench.harness import (
    SHARDS,
    ClusterServer,
    choose,
    database_bytes,
    fill,
    fresh_cluster,
    fresh_server,
    new_prefix,
    read_cpu,
    report,
    run_worker,
    working,
)
from bench.pack_filling import HOUR, Filling, start_packs, to_order, wait_until_asleep
from bench.worker_process import Order
from cluster.postgres import CORE, VISIBILITY
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import find_free_port

SOLO_SLEEPERS = 2000
SOLO_COUNT = 3000
SOLO_DELAY = 20.0
CACHE = 60
SLOTS = 30
PACK_COUNT = 100_000
PACK_SIZE = 1000
PACK_DELAY = 300.0
# ten times fewer than packs: nearly every wake is cold
PACK_SLOTS = 8
PACK_CACHE = 10
SHARES = (12, 48)
"""The mean delay is so many times the tolerance: many messages in a wake, and few."""

SECONDS = 30.0
FLUSH_SECONDS = 2.0
QUIET = 60.0
BATCHES = re.compile(
    r'^temporal_activity_execution_latency\w*_count\{[^}]*activity_type="run_batch"[^}]*\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a server, and its database where that is PostgreSQL, have used since they began."""

    server_cpu: float
    disk: float
    database_cpu: float = 0.0
    transactions: float = 0.0
    log_bytes: float = 0.0
    syncs: float = 0.0
    page_writes: float = 0.0

    def since(self, before: "Spent") -> "Spent":
        """Give what was used after `before`."""
        return Spent(**{f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self)})

    def per(self, count: float) -> dict[str, float]:
        """Divide the cost by a count."""
        return {
            "server cpu ms": 1000 * self.server_cpu / count,
            "database cpu ms": 1000 * self.database_cpu / count,
            "transactions": self.transactions / count,
            "log bytes": self.log_bytes / count,
            "log syncs": self.syncs / count,
            "page writes": self.page_writes / count,
            "disk bytes": self.disk / count,
        }


@dataclass(frozen=True, slots=True)
class Subject:
    """A server under measurement."""

    name: str
    server: EmbeddedServer
    measure: Callable[[], Spent]


async def main(arguments: list[str]) -> None:
    """Measure both servers, or the one that is named: postgresql, sqlite."""
    rows: list[dict[str, Any]] = []
    for name in choose(arguments, SUBJECTS, "server"):
        async with SUBJECTS[name]() as subject:
            await fill(await subject.server.connect(), "asleep", new_prefix(), 200, HOUR)  # the first are slower
            rows += [{"server": name} | row for row in [*await _run_solo(subject), *await _run_packs(subject)]]

    columns = dict.fromkeys(name for row in rows for name in row)
    note = f"{SHARDS} history shards in PostgreSQL; its own settings but for memory; log bytes are WAL"
    even = [{name: row.get(name, 0.0) for name in columns} for row in rows]
    report("database", even, note=note, case=" ".join(arguments))


@contextlib.asynccontextmanager
async def _sqlite() -> AsyncGenerator[Subject]:
    async with fresh_server() as server:
        (program,) = psutil.Process(server.process_id).children()
        yield Subject("sqlite", server, lambda: Spent(server_cpu=read_cpu(program), disk=database_bytes(server)))


@contextlib.asynccontextmanager
async def _postgresql() -> AsyncGenerator[Subject]:
    async with fresh_cluster() as server:
        yield Subject("postgresql", server, lambda: _read_spent(server))


SUBJECTS = {"sqlite": _sqlite, "postgresql": _postgresql}


def _read_spent(server: ClusterServer) -> Spent:
    """Read what PostgreSQL counts; a transaction shows there a second late."""
    cluster = server.cluster
    assert cluster.process is not None
    (line,) = cluster.postgres.run(f"""
        SELECT (SELECT sum(xact_commit) FROM pg_stat_database WHERE datname IN ('{CORE}', '{VISIBILITY}')),
               pg_current_wal_insert_lsn() - '0/0',
               (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal'),
               (SELECT sum(writes) FROM pg_stat_io WHERE object = 'relation')
    """)  # noqa: S608 — names of our own
    transactions, log, syncs, pages = map(float, line.split("|"))
    postmaster = psutil.Process(cluster.postgres.process_id)

    return Spent(
        server_cpu=read_cpu(cluster.process),
        database_cpu=sum(map(read_cpu, [postmaster, *postmaster.children()])),
        transactions=transactions,
        disk=database_bytes(server),
        log_bytes=log,
        syncs=syncs,
        page_writes=pages,
    )


async def _wait_until_idle(subject: Subject) -> Spent:
    """Wait until the server has nothing more to do, and give what it has used by then."""
    before = await asyncio.to_thread(subject.measure)
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        now = await asyncio.to_thread(subject.measure)
        used = now.since(before)
        if used.transactions < QUIET * FLUSH_SECONDS and used.server_cpu < 0.2 * FLUSH_SECONDS:
            return now
        before = now


async def _run_solo(subject: Subject) -> list[dict[str, Any]]:
    client = await subject.server.connect()
    before = await _wait_until_idle(subject)
    prefix = new_prefix()
    order = Order(what="dormice", prefix=prefix, seconds=HOUR, warmup=0, cache=CACHE, slots=SLOTS)
    rate = await fill(client, "asleep", prefix, SOLO_SLEEPERS, HOUR)
    started = await _wait_until_idle(subject)

    async with working(subject.server, order):  # each has a first task, in which it goes to sleep
        await asyncio.sleep(SOLO_SLEEPERS / 40)
        asleep = await _wait_until_idle(subject)

    rows = [
        {"what": "solo start", "count": SOLO_SLEEPERS, "a second": rate} | started.since(before).per(SOLO_SLEEPERS),
        {"what": "solo, until asleep", "count": SOLO_SLEEPERS, "a second": rate}
        | asleep.since(before).per(SOLO_SLEEPERS),
    ]
    due = new_prefix()
    await fill(client, "dormice", due, SOLO_COUNT, SOLO_DELAY)
    cycling = replace(order, prefix=due, seconds=SECONDS, windows=100, index_after=SOLO_DELAY / 2)

    return [*rows, {"what": "solo cycle"} | await _watch(subject, cycling)]


async def _run_packs(subject: Subject) -> list[dict[str, Any]]:
    client = await subject.server.connect()
    rows: list[dict[str, Any]] = []

    for share in SHARES:
        filling = Filling(
            prefix=new_prefix(),
            count=PACK_COUNT,
            size=PACK_SIZE,
            delay=PACK_DELAY,
            due_in=30.0,
            due_spread=PACK_DELAY,
            coalesce=PACK_DELAY / share,
        )
        before = await _wait_until_idle(subject)

        order = to_order(filling, slots=PACK_SLOTS, cache=PACK_CACHE, seconds=SECONDS, windows=100)
        async with working(subject.server, order):
            rate = await start_packs(client, filling, filling.envelopes())
            await wait_until_asleep(client, filling)

        taken = (await _wait_until_idle(subject)).since(before)
        rows.append({"what": "pack start", "count": PACK_COUNT, "a second": rate} | taken.per(PACK_COUNT))
        await run_worker(
            subject.server, replace(order, seconds=PACK_DELAY / 4, windows=1)
        )  # until the first have come back
        rows.append({"what": f"pack cycle, 1/{share}"} | await _watch(subject, order))

    return rows


async def _watch(subject: Subject, order: Order) -> dict[str, Any]:
    """Look at a worker for one of its windows, when it has had one to come to speed."""
    telemetry = f"127.0.0.1:{find_free_port()}"
    async with working(subject.server, replace(order, telemetry=telemetry)) as windows:
        await _until(windows, 1)
        before = await asyncio.to_thread(subject.measure)
        batches = await _count_batches(telemetry)
        await _until(windows, 2)
        used = (await asyncio.to_thread(subject.measure)).since(before)
        done = await _count_batches(telemetry) - batches
        window = windows[1]

    figures = {
        "count": window.cycles,
        "a second": window.rate,
        "worker cpu ms": window.cpu_ms,
        "in a batch": window.cycles / done if done else 1.0,
        "late p99 s": window.late_p99,
        "run twice": window.repeated,
    }
    print(order.what, figures, flush=True)
    return figures | used.per(window.cycles)


async def _until(windows: list[Any], count: int) -> None:
    async with asyncio.timeout(3 * SECONDS):
        while len(windows) < count:  # noqa: ASYNC110 — another process prints them
            await asyncio.sleep(0.05)


async def _count_batches(telemetry: str) -> float:
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"http://{telemetry}/metrics")).text
    return sum(map(float, BATCHES.findall(text)))
