"""dormice on its embedded server: a workflow for each message, or for 200, or for 1,000."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.runtime import Runtime, TelemetryConfig

from activities import Again, Context, Message, Pack, handler
from activities.registry import Registry
from bench.peers.work import Handle, Order
from shared.messages.envelope import Envelope
from shared.settings import Settings
from shared.temporal.connect import client_options
from starter.starting.bulk import BulkStarter
from starter.starting.receipts import StartOutcome
from worker.main import HEARTBEAT
from worker.process import tune_memory
from worker.run import WorkerPlan, run_workers

ROOM = 1.4
"""Room of a pack, as a multiple of its average number of messages: a hash fills some fuller than others."""

TOLERANCE = timedelta(seconds=1)


def _size(order: Order) -> int:
    """Read the packs' size from the contestant's name; 0 for a workflow each."""
    size = order.contestant.rpartition("-")[2]
    return int(size) if size.isdigit() else 0


def _encoding(order: Order) -> Pack | None:
    size = _size(order)
    return Pack(packs=max(1, order.count // size), size=round(size * ROOM) + 20, coalesce=TOLERANCE) if size else None


def _settings(order: Order) -> Settings:
    return Settings(task_queue_prefix=order.contestant, compress_packs=True)


async def _connect(order: Order, **options: Any) -> Client:
    return await Client.connect(order.addresses["temporal"], **client_options(_settings(order)), **options)


async def fill(order: Order) -> None:
    """Start all messages, due now."""
    encoding, kind = _encoding(order), order.contestant
    starter = BulkStarter(
        await _connect(order),
        _settings(order),
        encodings={kind: encoding} if encoding else {},
    )

    def envelopes() -> Iterator[tuple[None, Envelope]]:
        for message_id in order.message_ids():
            yield None, Envelope(kind=kind, id=message_id, lane="short", payload=order.payload(message_id))

    async for receipt in starter.start_all(envelopes()):
        assert receipt.outcome is StartOutcome.STARTED, receipt


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""

    @handler(order.contestant, encoding=_encoding(order))
    async def run(message: Message, ctx: Context) -> Again:  # noqa: ARG001 — the shape of every handler
        delay = await handle(message.id, message.version)
        return Again(after=timedelta(seconds=delay), tolerance=TOLERANCE)

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
