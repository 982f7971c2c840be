"""`python -m bench.visits.process WHAT ORDER`: loops over the bare client, fills, or serves; ORDER is JSON."""

import asyncio
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import psutil
import uvloop
from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from activities import Again, Context, Message, handler
from activities.api.handler import Handler
from activities.registry import Registry
from bench.serving import run_plan
from bench.visits.order import Order, Seen
from shared.messages.envelope import Envelope
from shared.temporal.connect import client_options
from starter.starting.bulk import BulkStarter
from worker.main import HEARTBEAT
from worker.process import tune_memory
from worker.run import WorkerPlan

BARE_AT_ONCE = 50


class Tally:
    """Counts the calls of a handler."""

    def __init__(self) -> None:
        self._lates: list[float] = []
        self._failed = 0

    def wrap(self, found: Handler) -> Handler:
        """Give the same handler, whose calls are counted."""

        @functools.wraps(found.function)
        async def count(message: Message, ctx: Context) -> Any:
            self._lates.append(time.time() - ctx.due_at.timestamp())
            try:
                return await found.function(message, ctx)
            except BaseException:
                # a cut-off counts as well; the worker gets what was raised
                self._failed += 1
                raise

        return replace(found, function=count)

    async def watch(self, order: Order) -> Seen:
        """Wait for the warm-up, then watch."""
        await asyncio.sleep(max(0.0, order.due_at - time.time()) + order.warmup)
        self._lates.clear()
        self._failed = 0
        began = time.monotonic()
        cpu = time.process_time()
        await asyncio.sleep(order.seconds)

        lates = sorted(self._lates) or [0.0]
        return Seen(
            visits=len(self._lates),
            failed=self._failed,
            seconds=time.monotonic() - began,
            cpu=time.process_time() - cpu,
            rss=psutil.Process().memory_info().rss,
            late_p50=lates[len(lates) // 2],
            late_p99=lates[int(len(lates) * 0.99)],
        )


def make_ten_lines(order: Order) -> Handler:
    """Make the handler that everybody would write."""
    context = order.tls
    delay = timedelta(seconds=order.delay_seconds)

    @handler("ten-lines", encoding=order.encoding)
    async def visit(message: Message, ctx: Context) -> Again:
        """Read a page and come back."""
        async with ctx.http.get(message.payload["url"], ssl=context) as answer:
            answer.raise_for_status()
            await answer.read()
        return Again(after=delay, tolerance=order.tolerance)

    return visit


async def loop_bare(order: Order) -> Seen:
    """Visit the pages with the client alone."""
    context = order.tls
    tally = Seen()
    is_over = False
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()) as s:

        async def visit() -> None:
            while not is_over:
                async with s.get(order.find_url(0), ssl=context) as answer:
                    answer.raise_for_status()
                    await answer.read()
                tally.visits += 1

        visiting = [asyncio.create_task(visit()) for _ in range(BARE_AT_ONCE)]
        await asyncio.sleep(2)
        tally.visits = 0
        began = time.monotonic()
        cpu = time.process_time()
        await asyncio.sleep(order.seconds)
        tally.seconds = time.monotonic() - began
        tally.cpu = time.process_time() - cpu
        is_over = True
        await asyncio.gather(*visiting)
    tally.rss = psutil.Process().memory_info().rss
    return tally


async def fill(order: Order) -> None:
    """Start all messages, due evenly from `due_at` on."""
    client = await Client.connect(order.server, **client_options(order.settings))
    encodings = {order.kind: order.encoding} if order.encoding else {}
    starter = BulkStarter(client, order.settings, encodings=encodings)
    async for _ in starter.start_all((None, envelope) async for envelope in _write_envelopes(order)):
        pass


async def _write_envelopes(order: Order) -> AsyncIterator[Envelope]:
    for number in range(order.messages):
        due = order.due_at + order.delay_seconds * number / order.messages
        yield Envelope(
            kind=order.kind,
            id=f"m{number}",
            lane="short",
            scheduled_at=datetime.fromtimestamp(due, UTC),
            tolerance_seconds=order.tolerance.total_seconds(),
            payload=order.payload(number),
        )


async def serve(order: Order) -> Seen:
    """Run a worker for as long as it is watched."""
    if order.kind == "http":
        found: Handler = importlib.import_module("activities.handlers.http.handler").http
        found = replace(found, encoding=order.encoding)
    else:
        found = make_ten_lines(order)
    tally = Tally()

    tune_memory()
    registry = Registry([("bench", tally.wrap(found))])
    plan = WorkerPlan(settings=order.settings, registry=registry, lanes=("short",), drain=timedelta(seconds=1))
    runtime = Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=HEARTBEAT)
    client = await Client.connect(order.server, **client_options(order.settings), runtime=runtime)
    async with run_plan(client, plan):
        return await tally.watch(order)


def main(arguments: list[str]) -> None:
    """Do what the order says; ends at once, whatever threads a library has left."""
    what, text = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run({"bare": loop_bare, "fill": fill, "serve": serve}[what](Order(**json.loads(text))))
        print(json.dumps(asdict(seen or Seen())), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
