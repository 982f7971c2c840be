"""dormice on its embedded server: a workflow for each message, or for 200, or for 1,000."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from activities import Again, Context, Message, Pack, handler
from activities.registry import Registry
from bench import pack_spread
from bench.peers.work import Fresh, Handle, Order, Send
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.connect import client_options
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from worker.main import HEARTBEAT
from worker.process import tune_memory
from worker.run import WorkerPlan, run_workers


def _size(order: Order) -> int:
    """Read the packs' size from the contestant's name; 0 for a workflow each."""
    size = order.contestant.rpartition("-")[2]
    return int(size) if size.isdigit() else 0


def count_packs(order: Order) -> int:
    """Give how many packs the messages are in; 0 for a workflow each."""
    return pack_spread.count_full_packs(order.count, _size(order))


def _encoding(order: Order) -> Pack | None:
    return pack_spread.spread_over_packs(order.count, _size(order), timedelta(seconds=order.tolerance))


def _settings(order: Order) -> Settings:
    settings = Settings(task_queue_prefix=order.contestant)
    if order.in_flight:
        settings = replace(settings, handlers_at_once=order.in_flight)
    # what is cached need not be replayed, so a run may be long
    return replace(settings, cached_workflows=order.cached, pack_cycles_per_run=2.0) if order.cached else settings


async def _connect(order: Order, **options: Any) -> Client:
    return await Client.connect(order.addresses["temporal"], **client_options(_settings(order)), **options)


async def fill(order: Order) -> None:
    """Start all messages."""
    dues = order.first_dues() if order.due_at else [None] * order.count
    await _start(await _build_starter(order), order, zip(order.message_ids(), dues, strict=True))


@contextlib.asynccontextmanager
async def sending(order: Order) -> AsyncGenerator[Send]:
    """Connect, to start messages beside those that serve."""
    starter = await _build_starter(order)

    async def send(fresh: Fresh) -> None:
        await _start(starter, order, fresh)

    yield send


async def _build_starter(order: Order) -> BulkStarter:
    """Make a starter that sends each pack its messages together."""
    encoding = _encoding(order)
    settings = replace(_settings(order), pack_room=order.count + 1)
    encodings = {order.contestant: encoding} if encoding else {}
    return BulkStarter(await _connect(order), settings, encodings=encodings)


async def _start(starter: BulkStarter, order: Order, messages: Iterable[tuple[str, float | None]]) -> None:
    def make_envelope(name: str, due: float | None) -> Envelope:
        scheduled_at = None if due is None else datetime.fromtimestamp(due, UTC)
        return Envelope(
            kind=order.contestant,
            id=name,
            lane="short",
            scheduled_at=scheduled_at,
            tolerance_seconds=order.tolerance,
            payload=order.payload(name),
        )

    async for receipt in starter.start_all((None, make_envelope(name, due)) for name, due in messages):
        # a pack that has its messages takes them in as soon as there is a worker
        assert receipt.outcome is StartOutcome.STARTED or "will take it in" in receipt.reason, receipt


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""
    timeout = timedelta(seconds=order.timeout) if order.timeout else None

    @handler(order.contestant, encoding=_encoding(order), timeout=timeout)
    async def run(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — the shape of every handler
        delay = await handle(message.id, message.version)
        return Again(after=timedelta(seconds=delay), tolerance=timedelta(seconds=order.tolerance))

    tune_memory()
    plan = WorkerPlan(
        settings=_settings(order),
        registry=Registry([("peers", run)]),
        lanes=("short",),
        drain=timedelta(seconds=5),
    )
    client = await _connect(order, runtime=Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=HEARTBEAT))
    stopping = asyncio.Event()
    running = asyncio.create_task(run_workers(client, plan, stopping))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stopping.set()
        await running
        raise
