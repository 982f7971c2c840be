"""Spark: its starts against a bare client's and the bulk starter's, prepare against a mere copy, memory, a crash; solo, packs, prepare, memory, crash [N …]."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.bare_loop import start_bare
from bench.harness import alternate, fresh_server, new_prefix, report
from bench.pack_filling import HOUR, Filling, start_packs
from bench.spark_processes import PACK_SIZE, Measured, dormice, measure, packing, run_beside, write_rows
from starter.embedded import EmbeddedServer

SOLO_COUNT, PACK_COUNT, PREPARE_COUNT = 4000, 200_000, 1_000_000
MEMORY_COUNTS = (100_000, 1_000_000)
PAIRS = 2
CRASH_COUNT = 1_000_000
KILL_AFTER_TASKS = 5


async def main(arguments: list[str]) -> None:
    """Run the part named first, with the counts behind it; without one: solo, packs and prepare."""
    parts = {"solo": _solo, "packs": _packs, "prepare": _prepare, "memory": _memory, "crash": _crash}
    if arguments and arguments[0] not in parts:
        print(f"spark: there is no part '{arguments[0]}'; use {', '.join(parts)}")
        return
    counts = [int(text.replace("_", "").replace(",", "")) for text in arguments[1:]]
    for name in arguments[:1] or ["solo", "packs", "prepare"]:
        await parts[name](counts)


async def _solo(counts: list[int]) -> None:
    """Starts a second of messages with a workflow each, the start of Spark left out."""
    count = counts[0] if counts else SOLO_COUNT
    rates: dict[str, list[float]] = {"bare client": [], "spark start": []}
    async with fresh_server() as server:
        client = await server.connect()
        await start_bare(client, new_prefix(), [new_prefix() for _ in range(200)], delay=HOUR, cycles=5)
        for number in range(PAIRS):
            for what in alternate(rates, number):
                rates[what].append(await (_start_bare if what == "bare client" else _start_solo)(server, count))
    _report_ratio(rates, f"{count:,} starts each, {PAIRS} rounds", case="solo")


async def _start_bare(server: EmbeddedServer, count: int) -> float:
    prefix, client, began = new_prefix(), await server.connect(), time.monotonic()
    await start_bare(client, prefix, [f"{prefix}-{n}" for n in range(count)], delay=HOUR, cycles=5)
    return count / (time.monotonic() - began)


async def _start_solo(server: EmbeddedServer, count: int) -> float:
    return (await _start(server, "echo", count, is_packed=False)).rate


async def _packs(counts: list[int]) -> None:
    """Starts a second of packed messages, the start of Spark left out; no worker runs."""
    count = counts[0] if counts else PACK_COUNT
    rates: dict[str, list[float]] = {"bulk starter": [], "spark start": []}
    async with fresh_server() as server:
        for number in range(PAIRS):
            for what in alternate(rates, number):
                rates[what].append(await (_start_in_bulk if what == "bulk starter" else _start_packed)(server, count))
    _report_ratio(rates, f"{count:,} messages in packs of about {PACK_SIZE:,}, {PAIRS} rounds", case="packs")


async def _start_in_bulk(server: EmbeddedServer, count: int) -> float:
    filling = Filling(prefix=new_prefix(), count=count, size=PACK_SIZE, delay=HOUR, due_in=HOUR)
    return await start_packs(await server.connect(), filling, filling.envelopes())


async def _start_packed(server: EmbeddedServer, count: int) -> float:
    return (await _start(server, new_prefix(), count, is_packed=True)).rate


async def _prepare(counts: list[int]) -> None:
    """Rows a second that are checked and written, and that Spark merely reads and writes."""
    count = counts[0] if counts else PREPARE_COUNT
    rates: dict[str, list[float]] = {"read and write": [], "spark prepare": []}
    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        rows = write_rows(Path(folder), "echo", "m", count)
        for number in range(PAIRS):
            for what in alternate(rates, number):
                target = Path(folder, f"{what[:4]}-{number}")
                seconds = await (_copy if what == "read and write" else _time_prepare)(rows, target)
                rates[what].append(count / seconds)
    _report_ratio(rates, f"{count:,} rows of JSON lines, {PAIRS} rounds", case="prepare")


async def _copy(rows: Path, target: Path) -> float:
    program = (
        "import os, sys, time\n"
        "from shared.settings import Settings\n"
        "from spark.session import build_session\n"
        "session = build_session(Settings())\n"
        "began = time.monotonic()\n"
        "session.read.schema('kind string, id string, scheduled_at string, payload string').json(sys.argv[1])"
        ".write.parquet(sys.argv[2])\n"
        "print('{\"seconds\": %f}' % (time.monotonic() - began), flush=True)\n"
        "session.stop()\n"
        "os._exit(0)\n"
    )
    return (await measure([sys.executable, "-c", program, str(rows), str(target)], {})).told["seconds"]


async def _time_prepare(rows: Path, target: Path) -> float:
    return (await measure(dormice("prepare", str(rows), str(target)), {})).told["seconds"]


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


async def _start(server: EmbeddedServer, kind: str, count: int, *, is_packed: bool) -> Measured:
    """Prepare and start messages as people do; the rate is that of the start alone, without that of Spark."""
    prefix = new_prefix()
    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        variables = {"TEMPORAL_ADDRESS": server.address, "DORMICE_TASK_QUEUE_PREFIX": prefix}
        if is_packed:
            variables = packing(server, Path(folder), kind, count)
        rows, manifest = write_rows(Path(folder), kind, prefix, count), str(Path(folder, "manifest"))
        await measure(dormice("prepare", str(rows), manifest), variables)
        measured = await measure(dormice("start", manifest), variables)
    assert measured.told["now"]["started"] == count, measured.told
    measured.rate = count / measured.told["seconds"]
    return measured


async def _crash(counts: list[int]) -> None:
    """The driver is killed in mid-start: the same start again, and reconcile's proof that no row is lost."""
    count = counts[0] if counts else CRASH_COUNT
    kind, told = new_prefix(), dict[str, Measured]()
    async with fresh_server() as server:
        with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
            variables = packing(server, Path(folder), kind, count)
            rows, manifest = write_rows(Path(folder), kind, kind, count), Path(folder, "manifest")
            # packs that exist already are asked what became of a message, and a worker answers for them
            async with run_beside([sys.executable, "-m", "worker", "--lane", "short", "--processes", "1"], variables):
                told["prepare"] = await measure(dormice("prepare", str(rows), str(manifest)), variables)
                async with run_beside(dormice("start", str(manifest)), variables):
                    await asyncio.to_thread(_wait_for_receipts, manifest)
                told["start again"] = await measure(dormice("start", str(manifest)), variables)
                told["reconcile"] = await measure(dormice("reconcile", str(manifest)), variables)
    started, proof = told["start again"].told, told["reconcile"].told
    assert started["missing"] == 0, started
    assert proof["is_complete"], proof
    assert proof["alive"] == count, proof
    settled = {"prepare": count, "start again": sum(started["now"].values()), "reconcile": proof["rows"]}
    table = [
        {"step": step, "messages": settled[step]} | {f"{sort} MB": size / 1e6 for sort, size in measured.rss.items()}
        for step, measured in told.items()
    ]
    report("spark", table, note=f"{count:,} rows into packs, the driver killed once; reconciled complete", case="crash")


def _wait_for_receipts(manifest: Path) -> None:
    while len(list(manifest.glob("receipts/*.parquet"))) < KILL_AFTER_TASKS:
        time.sleep(0.1)


def _report_ratio(rates: dict[str, list[float]], note: str, case: str) -> None:
    """Report medians and how the second contestant does beside the first one, round by round."""
    (first, yard), (second, ours) = rates.items()
    ratio = median(a / b for a, b in zip(ours, yard, strict=True))
    rows = [
        {"what": first, "a second": median(yard), "ratio": 1.0},
        {"what": second, "a second": median(ours), "ratio": ratio},
    ]
    report("spark", rows, note=note, case=case)
