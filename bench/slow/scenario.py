"""The scenario `slow`: each row on a server of its own, with one worker process; or one row, with each contestant."""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil
from temporalio.client import Client

from bench.harness import fresh_server, report, sum_cpu
from bench.peers.contestants import TEMPORAL, Contestant, find_contestant
from bench.peers.contestants.dormice_messages import count_packs
from bench.peers.processes import fill, running
from bench.peers.servers import run_servers
from bench.slow.rows import ROWS, Row
from bench.slow.work import Order, Window
from shared.messages.placement import pack_index, pack_workflow_id, workflow_id
from starter.local.supervised_process import find_free_port, kill_supervised, start_supervised

PEERS = {"kafka-redis": 2000, "table": 2000, "procrastinate": 500, "dormice-1000": 0}
"""How many calls each has in flight at once; 0: as many as dormice has by itself."""

PROCRASTINATE_MESSAGES = 60_000
"""Filling it with all would take longer than the run; its messages come back the sooner, so that as many are due."""

PROCESS = "bench.slow.process"
FILLED_PER_SECOND = 6000
START_SECONDS = 30.0
WINDOW_SECONDS = 30.0
PEERS_MODE = "peers"
PEERS_ROW = "tail"


async def main(arguments: list[str]) -> None:
    """Measure all rows, or those that are named; with `peers` first, the contestants with one row."""
    flags = _parse(arguments)
    names: list[str] = flags.names
    async with contextlib.AsyncExitStack() as stack:
        site = await stack.enter_async_context(_run_site()) if flags.http else ""
        if names[:1] == [PEERS_MODE]:
            rows = await _measure_peers(names[1:] or list(PEERS), _change(ROWS[flags.row or PEERS_ROW], flags), site)
        else:
            rows = [await _measure_alone(_change(ROWS[name], flags), site) for name in names or ROWS]

    _report(rows, flags)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench slow", description="see bench/slow/__init__.py")
    parser.add_argument("names", nargs="*", help=f"{', '.join(ROWS)}; or {PEERS_MODE} and any of {', '.join(PEERS)}")
    parser.add_argument("--row", choices=list(ROWS), help=f"which row peers have, {PEERS_ROW} by itself")
    parser.add_argument("--messages", type=int, help="how many messages")
    parser.add_argument("--rate", type=float, help="how many calls a second are due")
    parser.add_argument("--special", type=int, help="how many messages hang, or last long each time")
    parser.add_argument("--seconds", type=float, help="how long to watch")
    parser.add_argument("--warmup", type=float, help="how long to wait before, from the first due time on")
    parser.add_argument("--cached", type=int, help="how many workflows the worker caches")
    parser.add_argument("--in-flight", type=int, help="how many calls a worker process has at once")
    parser.add_argument("--http", action="store_true", help="handlers make requests, they do not sleep")
    flags = parser.parse_args(arguments)

    known = [PEERS_MODE, *PEERS] if flags.names[:1] == [PEERS_MODE] else list(ROWS)
    if strange := [name for name in flags.names if name not in known]:
        parser.error(f"there is no '{strange[0]}'; use any of {', '.join(known)}")
    return flags


def _change(row: Row, flags: argparse.Namespace) -> Row:
    names = ("messages", "rate", "special", "seconds", "warmup", "cached", "in_flight")
    given = {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}
    if not row.special:
        given.pop("special", None)
    return replace(row, **given)


def _report(rows: list[dict[str, Any]], flags: argparse.Namespace) -> None:
    words: list[str] = list(flags.names)
    for name, value in vars(flags).items():
        if name != "names" and value:
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, value if isinstance(value, str) else f"{value:g}"]
    what = "requests to a site on loopback" if flags.http else "handlers sleep"
    note = f"{what}; one worker process each; late: seconds after the due time, of all but special messages"
    report("slow", rows, note=note, case=" ".join(words))


async def _measure_alone(row: Row, site: str) -> dict[str, Any]:
    async with fresh_server() as server:
        process = psutil.Process(server.process_id)
        return await _measure(row, {TEMPORAL: server.address}, [process], site, await server.connect())


async def _measure_peers(names: list[str], row: Row, site: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in names:
        contestant = find_contestant(name)
        own = replace(row, contestant=name, title=contestant.title, in_flight=row.in_flight or PEERS[name])
        if name == "procrastinate":
            own = replace(own, messages=min(own.messages, PROCRASTINATE_MESSAGES))
        rows.append(await _measure_peer(contestant, own, site))
    return rows


async def _measure_peer(contestant: Contestant, row: Row, site: str) -> dict[str, Any]:
    async with run_servers() as servers:
        addresses = {name: servers[name].address(contestant.name) for name in contestant.servers}
        client = await Client.connect(addresses[TEMPORAL]) if TEMPORAL in addresses else None
        return await _measure(row, addresses, [], site, client)


async def _measure(
    row: Row, addresses: Mapping[str, str], servers: Sequence[psutil.Process], site: str, client: Client | None
) -> dict[str, Any]:
    """Fill a contestant's store, then watch a process that serves it."""
    order = _to_order(row, addresses, site)
    await fill(order, module=PROCESS)
    if time.time() > order.due_at:
        print(f"{row.title}: filled {time.time() - order.due_at:.0f} s too late", file=sys.stderr)

    parked = None
    cpu = {0: 0.0}
    async with running("serve", order, asyncio.subprocess.PIPE, module=PROCESS) as process:
        total = Window()
        number = 0
        async for total in _read_windows(process):
            number += 1
            cpu[number] = sum(map(sum_cpu, servers))
            print(f"{row.title}: {_describe_window(total)}", file=sys.stderr, flush=True)
            if total.is_total:
                break
        else:
            raise RuntimeError(f"{order.contestant} ended by itself; what it said is above")
        server_bytes = sum(map(_sum_memory, servers))
        if client is not None and order.special:
            parked = await _count_parked(client, order)
    # the first window has begun some time before its line came, so the others tell what a second costs
    seconds = total.seconds * (number - 2) / (number - 1)
    server_cpu = (cpu[number] - cpu[1]) / seconds if seconds else 0.0
    return _to_columns(row, total, parked, server_bytes, server_cpu)


def _to_order(row: Row, addresses: Mapping[str, str], site: str) -> Order:
    return Order(
        contestant=row.contestant,
        addresses=addresses,
        count=row.messages,
        delay=row.delay,
        io_seconds=row.io,
        seconds=row.seconds,
        warmup=row.warmup,
        due_at=time.time() + START_SECONDS + row.messages / FILLED_PER_SECOND,
        cached=row.cached,
        is_spread=True,
        tolerance=row.tolerance,
        in_flight=row.in_flight,
        timeout=row.timeout,
        share=row.share,
        long=row.long,
        special=row.special,
        special_io=row.special_io,
        site=site,
        windows=max(2, round(row.seconds / WINDOW_SECONDS)),
    )


async def _read_windows(process: asyncio.subprocess.Process) -> AsyncGenerator[Window]:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.startswith(b"{"):
            yield Window(**json.loads(line))
        else:  # the SDK's core logs to standard output, and the tally names what was repeated
            print(line.decode(errors="replace").rstrip(), file=sys.stderr)


def _describe_window(window: Window) -> str:
    rate = window.calls / window.seconds
    due = window.due / window.seconds
    late = f"late p50 {window.late_p50:.1f}, p99 {window.late_p99:.1f}, max {window.late_max:.1f} s"
    waiting = f"{window.overdue:,} overdue, up to {window.waits:.0f} s; {window.in_flight:,} in flight"
    faults = f"{window.repeated:,} repeated, {window.left_out} left out, {window.early} early, {window.cut_off} cut off"
    return f"{rate:,.0f} of {due:,.0f} a second; {late}; {waiting}; {faults}; {window.rss / 1e6:,.0f} MB"


async def _count_parked(client: Client, order: Order) -> int:
    """Ask for each special message whether it is parked; a worker still runs."""
    found = 0
    packs = count_packs(order)

    for number, name in enumerate(order.message_ids()):
        if not order.is_special(number):
            continue
        workflow = workflow_id(order.contestant, name)
        if packs:
            workflow = pack_workflow_id(order.contestant, pack_index(name, packs))
        arguments = [name] if packs else []
        status: Any = await client.get_workflow_handle(workflow).query("status", *arguments)
        found += status["state"] == "parked"

    return found


def _to_columns(row: Row, total: Window, parked: int | None, server_bytes: int, server_cpu: float) -> dict[str, Any]:
    rate = total.calls / total.seconds
    return {
        "what": row.title,
        "calls/s": rate,
        "due/s": total.due / total.seconds,
        "meant/s": row.rate,
        "on time/s": total.on_time / total.seconds,
        "late p50": total.late_p50,
        "late p99": total.late_p99,
        "late max": total.late_max,
        "overdue": total.overdue,
        "repeats": total.repeated,
        "left out": total.left_out,
        "special calls": total.special_calls,
        "cut off": total.cut_off,
        "parked": parked,
        "in flight": total.in_flight,
        "files": total.files,
        "worker MB": total.rss / 1e6,
        "worker cpu": total.cpu / total.seconds,
        "server MB": server_bytes / 1e6,
        "server cpu": server_cpu,
    }


def _sum_memory(process: psutil.Process) -> int:
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


@contextlib.asynccontextmanager
async def _run_site() -> AsyncGenerator[str]:
    """Run a site on loopback for the length of a `with` block; gives its host and port."""
    port = find_free_port()
    command = [sys.executable, "-m", "bench.slow.site", str(port)]

    process = await start_supervised(command, asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield f"127.0.0.1:{port}"
    finally:
        await kill_supervised(process)
