"""Spark, against a client, the starter, a copy: solo, packs, prepare, memory, crash, reconcile, beside, pipeline."""

import asyncio
import contextlib
import importlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.bare_loop import start_bare
from bench.harness import alternate, choose, fresh_server, new_prefix, read_count, report
from bench.pack_filling import HOUR, Filling, start_packs
from bench.spark_pipeline import run_pipeline
from bench.spark_processes import PACK_SIZE, Measured, dormice, measure, packing, run_in_background, write_rows
from starter.local.embedded import EmbeddedServer

SOLO_COUNT = 4000
PACK_COUNT = 200_000
PREPARE_COUNT = 1_000_000
MEMORY_COUNTS = (100_000, 1_000_000)
PAIRS = 2
CRASH_COUNT = RECONCILE_COUNT = MEANWHILE_COUNT = 1_000_000
BUSY_DELAY = 60.0  # a million that come back so soon are many times what a worker can run
KILL_AFTER_TASKS = 5
ROW_GROUP = 100_000  # rows of a Parquet file that one task reads at least
_WORKER = [sys.executable, "-m", "worker", "--lane", "short", "--processes", "1"]
_COPY = "read and write, JSON lines"
_TASKS = "spark start, from the first receipt to the last"
_COMMAND = "spark start, the whole command"


async def main(arguments: list[str]) -> None:
    """Run the part named first, with the counts behind it; without one: solo, packs and prepare."""
    parts = {"solo": _solo, "packs": _packs, "prepare": _prepare, "memory": _memory, "crash": _crash}
    parts |= {"reconcile": _reconcile, "beside": _start_meanwhile, "pipeline": partial(run_pipeline, worker=_WORKER)}
    named = choose(arguments[:1] or ["solo", "packs", "prepare"], parts, "part")
    counts = [read_count([number], SOLO_COUNT) for number in arguments[1:]]
    for name in named:
        await parts[name](counts)


async def _solo(counts: list[int]) -> None:
    """Starts a second of messages with a workflow each."""
    count = counts[0] if counts else SOLO_COUNT
    async with fresh_server() as server:
        client = await server.connect()
        await start_bare(client, new_prefix(), [new_prefix() for _ in range(200)], delay=HOUR, cycles=5)
        contestants = {
            "bare client": lambda: _start_bare(server, count),
            _TASKS: lambda: _start(server, "echo", count, is_packed=False),
        }
        await _compare_starts(contestants, f"{count:,} starts each, {PAIRS} rounds", case="solo")


async def _start_bare(server: EmbeddedServer, count: int) -> float:
    prefix = new_prefix()
    client = await server.connect()
    began = time.monotonic()
    await start_bare(client, prefix, [f"{prefix}-{n}" for n in range(count)], delay=HOUR, cycles=5)
    return count / (time.monotonic() - began)


async def _packs(counts: list[int]) -> None:
    """Starts a second of packed messages; no worker runs."""
    count = counts[0] if counts else PACK_COUNT
    async with fresh_server() as server:
        contestants = {
            "bulk starter": lambda: _start_in_bulk(server, count),
            _TASKS: lambda: _start(server, new_prefix(), count, is_packed=True),
        }
        note = f"{count:,} messages in packs of about {PACK_SIZE:,}, {PAIRS} rounds"
        await _compare_starts(contestants, note, case="packs")


async def _start_in_bulk(server: EmbeddedServer, count: int) -> float:
    filling = Filling(prefix=new_prefix(), count=count, size=PACK_SIZE, delay=HOUR, due_in=HOUR)
    return await start_packs(await server.connect(), filling, filling.envelopes())


async def _compare_starts(
    contestants: Mapping[str, Callable[[], Awaitable[float | Measured]]], note: str, case: str
) -> None:
    rates: dict[str, list[float]] = {name: [] for name in (*contestants, _COMMAND)}
    for number in range(PAIRS):
        for what, measure_it in alternate(contestants, number).items():
            seen = await measure_it()
            rate = seen.task_rate if isinstance(seen, Measured) else seen
            rates[what].append(rate)
            if isinstance(seen, Measured):
                rates[_COMMAND].append(seen.rate)
    _report_ratio(rates, note, case=case)


async def _prepare(counts: list[int]) -> None:
    """Rows a second that are checked and written, and that Spark merely reads and writes."""
    count = counts[0] if counts else PREPARE_COUNT
    rates: dict[str, list[float]] = {
        name: [] for name in (_COPY, "spark prepare, JSON lines", "spark prepare, Parquet")
    }

    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        lines = write_rows(Path(folder), "echo", "m", count)
        table = _write_table(lines)
        for number in range(PAIRS):
            for what in alternate(rates, number):
                target = Path(folder, f"{what} {number}")
                source = table if what.endswith("Parquet") else lines
                seconds = await (_copy if what == _COPY else _time_prepare)(source, target)
                rates[what].append(count / seconds)

    _report_ratio(rates, f"{count:,} rows, without the start of Spark, {PAIRS} rounds", case="prepare")


def _write_table(lines: Path) -> Path:
    """Write JSON lines as Parquet: moments as timestamps, payloads as text."""
    arrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    path = lines.with_name("rows.parquet")
    text = arrow.string()

    schema = arrow.schema(
        dict.fromkeys(("kind", "id"), text) | {"scheduled_at": arrow.timestamp("us", "UTC"), "payload": text}
    )
    with lines.open() as stream, parquet.ParquetWriter(path, schema) as writer:
        while rows := [json.loads(line) for line in itertools.islice(stream, ROW_GROUP)]:
            for row in rows:
                row["scheduled_at"] = datetime.fromisoformat(row["scheduled_at"])
                row["payload"] = json.dumps(row["payload"])
            writer.write_table(arrow.Table.from_pylist(rows, schema))

    return path


async def _copy(rows: Path, target: Path) -> float:
    program = (
        "import os, sys, time\n"
        "from shared.settings import Settings\n"
        "from spark.session.session import build_session\n"
        "session = build_session(Settings())\n"
        "began = time.monotonic()\n"
        "session.read.schema('kind string, id string, scheduled_at string, payload string').json(sys.argv[1])"
        ".write.parquet(sys.argv[2])\n"
        "print('{\"seconds\": %f}' % (time.monotonic() - began), flush=True)\n"
        "session.stop()\n"
        "os._exit(0)\n"
    )
    return (await measure([sys.executable, "-c", program, str(rows), str(target)], {})).reported["seconds"]


async def _time_prepare(rows: Path, target: Path) -> float:
    return (await measure(dormice("prepare", str(rows), str(target)), {})).reported["seconds"]


async def _memory(counts: list[int]) -> None:
    """The most memory that driver, JVM and Python workers took, by how many messages were prepared and started."""
    rows: list[dict[str, Any]] = []
    for count in counts or MEMORY_COUNTS:
        async with fresh_server() as server:
            started = await _start(server, new_prefix(), count, is_packed=True)
        rows.append(
            {"messages": count, "starts/s": started.rate} | {f"{r} MB": b / 1e6 for r, b in started.rss.items()}
        )
    report("spark", rows, note="spark start; the largest sum of each sort of process", case="memory")


async def _start_meanwhile(counts: list[int]) -> None:
    """Packed messages started with the whole command while a worker takes them in."""
    rows: list[dict[str, Any]] = []
    count = counts[0] if counts else MEANWHILE_COUNT
    for _ in range(PAIRS):
        async with fresh_server() as server:
            seen = await _start(server, new_prefix(), count, is_packed=True, has_worker=True)
        rows.append({"messages": count, "starts/s": seen.rate, "from the first receipt to the last": seen.task_rate})
    report("spark", rows, note="the whole command, without the start of Spark, beside a worker", case="beside")


async def _start(
    server: EmbeddedServer, kind: str, count: int, *, is_packed: bool, has_worker: bool = False
) -> Measured:
    """Prepare and start messages as people do; the rates are those of the start alone, without that of Spark."""
    prefix = new_prefix()
    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        variables = {"TEMPORAL_ADDRESS": server.address, "DORMICE_TASK_QUEUE_PREFIX": prefix}
        if is_packed:
            variables = packing(server, Path(folder), kind, count)
        rows = write_rows(Path(folder), kind, prefix, count)
        manifest = str(Path(folder, "manifest"))
        await measure(dormice("prepare", str(rows), manifest), variables)
        async with run_in_background(_WORKER, variables) if has_worker else contextlib.nullcontext():
            measured = await measure(dormice("start", manifest), variables)
        measured.task_rate = count / _find_span(Path(manifest))

    assert measured.reported["now"]["started"] == count, measured.reported
    measured.rate = count / measured.reported["seconds"]
    return measured


def _find_span(manifest: Path) -> float:
    """Give the seconds from the first receipt to the last."""
    moments: Any = importlib.import_module("pyarrow.parquet").read_table(manifest / "receipts")["started_at"]
    bounds = importlib.import_module("pyarrow.compute").min_max(moments).as_py()
    return (bounds["max"] - bounds["min"]).total_seconds()


async def _crash(counts: list[int]) -> None:
    """The driver is killed in mid-start: the same start again, and reconcile's proof that no row is lost."""
    count = counts[0] if counts else CRASH_COUNT
    kind = new_prefix()
    steps = dict[str, Measured]()

    async with fresh_server() as server:
        with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
            variables = packing(server, Path(folder), kind, count)
            rows = write_rows(Path(folder), kind, kind, count)
            manifest = Path(folder, "manifest")
            # packs that exist already are asked what became of a message, and a worker answers for them
            async with run_in_background(_WORKER, variables):
                steps["prepare"] = await measure(dormice("prepare", str(rows), str(manifest)), variables)
                async with run_in_background(dormice("start", str(manifest)), variables):
                    await asyncio.to_thread(_wait_for_receipts, manifest)
                steps["start again"] = await measure(dormice("start", str(manifest)), variables)
                steps["reconcile"] = await measure(dormice("reconcile", str(manifest)), variables)

    started = steps["start again"].reported
    proof = steps["reconcile"].reported
    assert started["missing"] == 0, started
    assert proof["is_complete"], proof
    assert proof["alive"] == count, proof
    settled = {"prepare": count, "start again": sum(started["now"].values()), "reconcile": proof["rows"]}
    table = [
        {"step": step, "messages": settled[step]} | {f"{sort} MB": size / 1e6 for sort, size in measured.rss.items()}
        for step, measured in steps.items()
    ]
    report("spark", table, note=f"{count:,} rows into packs, the driver killed once; reconciled complete", case="crash")


async def _reconcile(counts: list[int]) -> None:
    """Seconds of reconciles beside a worker that has more to run than it can."""
    count = counts[0] if counts else RECONCILE_COUNT
    kind = new_prefix()
    rows = list[dict[str, Any]]()

    async with fresh_server() as server:
        with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
            variables = packing(server, Path(folder), kind, count, BUSY_DELAY)
            source = write_rows(Path(folder), kind, kind, count, due=None)
            manifest = str(Path(folder, "manifest"))
            await measure(dormice("prepare", str(source), manifest), variables)
            async with run_in_background(_WORKER, variables):
                await measure(dormice("start", manifest), variables)
                for _ in range(PAIRS):
                    began = time.monotonic()
                    proof = await measure(dormice("reconcile", manifest), variables)
                    assert proof.reported["is_complete"], proof.reported
                    rows.append({"messages": proof.reported["alive"], "seconds": time.monotonic() - began})

    report("spark", rows, note="the whole command, beside a worker that is never idle", case="reconcile")


def _wait_for_receipts(manifest: Path) -> None:
    while len(list(manifest.glob("receipts/*.parquet"))) < KILL_AFTER_TASKS:
        time.sleep(0.1)


def _report_ratio(rates: dict[str, list[float]], note: str, case: str) -> None:
    """Report medians and how the others do beside the first contestant, round by round."""
    yard = next(iter(rates.values()))
    rows = [
        {
            "what": what,
            "a second": median(ours),
            "ratio": median(a / b for a, b in zip(ours, yard, strict=True)),
        }
        for what, ours in rates.items()
    ]
    report("spark", rows, note=note, case=case)
