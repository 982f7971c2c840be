"""The scenario `visits`: before each case the bare loop, then its messages on a server of its own."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from bench.harness import fresh_server, report, sum_cpu
from bench.peers.servers import RedisServer
from bench.visits.cases import CASES, CELERY, SCRAPY, Case
from bench.visits.order import Order, Seen
from bench.visits.site import Site, run_site
from starter.local.embedded import EmbeddedServer
from starter.local.supervised_process import kill_supervised, start_supervised

PROCESS = "bench.visits.process"
SPIDER = "bench.visits.spider"
CELERY_TASKS = "bench.visits.celery_tasks"

FILLED_PER_SECOND = 5000
START_SECONDS = 20.0
BARE_SECONDS = 10.0


async def main(arguments: list[str]) -> None:
    """Measure all cases, or those that are named."""
    parser = argparse.ArgumentParser(prog="./run bench visits", description="see bench/visits/__init__.py")
    parser.add_argument("names", nargs="*", help=", ".join(CASES))
    parser.add_argument("--messages", type=int, help="how many messages")
    parser.add_argument("--rate", type=float, help="how many visits a second are due")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch")
    parser.add_argument("--warmup", type=float, default=30.0, help="how long to wait before that")
    flags = parser.parse_args(arguments)
    if strange := [name for name in flags.names if name not in CASES]:
        parser.error(f"there is no '{strange[0]}'; use any of {', '.join(CASES)}")

    changes = {name: getattr(flags, name) for name in ("messages", "rate") if getattr(flags, name) is not None}
    rows: list[dict[str, Any]] = []
    async with run_site() as site:
        for name in flags.names or CASES:
            case = replace(CASES[name], **changes)
            measure = MEASURES.get(case.kind, _measure)
            rows.append(await measure(case, site, flags))
            print(rows[-1], file=sys.stderr, flush=True)
    note = "a page of 3 KB from nginx on loopback, keep-alive; one worker process; cpu: milliseconds a visit"
    report("visits", rows, note=note, case=" ".join(arguments))


async def _measure_spider(case: Case, site: Site, flags: argparse.Namespace) -> dict[str, Any]:
    """Let Scrapy visit as often as it can."""
    return await _measure_without_end(case, site, _to_order(case, site, "", flags), SPIDER)


async def _measure_celery(case: Case, site: Site, flags: argparse.Namespace) -> dict[str, Any]:
    """Let Celery visit as often as it can, with a Redis of its own."""
    with tempfile.TemporaryDirectory(prefix="dormice-bench-") as folder:
        async with RedisServer(Path(folder)) as redis:
            order = _to_order(case, site, f"redis://{redis.address}/0", flags)
            return await _measure_without_end(case, site, order, CELERY_TASKS)


async def _measure_without_end(case: Case, site: Site, order: Order, module: str) -> dict[str, Any]:
    bare = await _run("bare", replace(order, seconds=BARE_SECONDS))
    cpu = sum_cpu(site.process)
    seen = await _run("visit", order, module)
    spent = (sum_cpu(site.process) - cpu) * order.seconds / (order.seconds + order.warmup)
    return _to_row(case, seen, bare, spent) | {"due/s": None, "late p50": None, "late p99": None}


MEASURES = {SCRAPY: _measure_spider, CELERY: _measure_celery}
"""How to measure what is not a kind of dormice."""


async def _measure(case: Case, site: Site, flags: argparse.Namespace) -> dict[str, Any]:
    """Serve messages that are due at the case's rate."""
    async with fresh_server() as server:
        order = _to_order(case, site, server.address, flags)
        bare = await _run("bare", replace(order, seconds=BARE_SECONDS, hosts=1))
        order = replace(order, due_at=time.time() + START_SECONDS + case.messages / FILLED_PER_SECOND)
        await _run("fill", order)
        cpu = _sum_cpu(server, site)
        seen = await _run("serve", order)
        # the warm-up costs them as much a visit
        spent = (_sum_cpu(server, site) - cpu) * order.seconds / (order.seconds + order.warmup)
    return _to_row(case, seen, bare, spent)


def _to_row(case: Case, seen: Seen, bare: Seen, spent: float) -> dict[str, Any]:
    rate = seen.visits / seen.seconds
    limit = bare.visits / bare.seconds
    return {
        "what": case.title,
        "due/s": case.rate,
        "visits/s": rate,
        "bare/s": limit,
        "of bare": rate / limit,
        "late p50": seen.late_p50,
        "late p99": seen.late_p99,
        "failed": seen.failed,
        "worker cpu": seen.cpu / seen.visits * 1000 if seen.visits else 0.0,
        "others cpu": spent / seen.visits * 1000 if seen.visits else 0.0,
        "bare cpu": bare.cpu / bare.visits * 1000,
        "MB": seen.rss / 1e6,
    }


def _to_order(case: Case, site: Site, server: str, flags: argparse.Namespace) -> Order:
    scheme, port = ("https", site.tls_port) if case.is_encrypted else ("http", site.port)
    certificate = str(site.certificate) if case.is_encrypted else ""
    return Order(
        server=server,
        origin=f"{scheme}://localhost:{port}",
        hosts=case.hosts,
        kind=case.kind,
        size=case.size,
        messages=case.messages,
        delay_seconds=case.delay_seconds,
        at_once=case.at_once,
        certificate=certificate,
        due_at=0.0,
        warmup=flags.warmup,
        seconds=flags.seconds,
    )


async def _run(what: str, order: Order, module: str = PROCESS) -> Seen:
    command = [sys.executable, "-m", module, what, json.dumps(asdict(order))]
    process = await start_supervised(command, asyncio.subprocess.PIPE, os.environ, errors=sys.stderr.fileno())
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{"):
                return Seen(**json.loads(line))
            print(line.decode(errors="replace").rstrip(), file=sys.stderr)
    finally:
        await kill_supervised(process)

    raise RuntimeError(f"the process that should {what} ended by itself; what it said is above")


def _sum_cpu(server: EmbeddedServer, site: Site) -> float:
    return sum_cpu(psutil.Process(server.process_id)) + sum_cpu(site.process)
