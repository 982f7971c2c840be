"""procrastinate on PostgreSQL: a job for each message, which defers the next one; stalled jobs are retried."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.work import Fresh, Handle, Order, Send

CONCURRENCY = 100
FILLED_AT_ONCE = 1000
STALLED_SECONDS = 10.0


async def fill(order: Order) -> None:
    """Make the tables, and defer a job for each message."""
    app = App(connector=PsycopgConnector(conninfo=order.addresses["postgres"]))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        dues = list(zip(order.message_ids(), order.first_dues(), strict=True))
        for first in range(0, len(dues), FILLED_AT_ONCE):
            await _defer(app, order, dues[first : first + FILLED_AT_ONCE])


@contextlib.asynccontextmanager
async def sending(order: Order) -> AsyncGenerator[Send]:
    """Connect, to defer jobs beside those that serve."""
    app = App(connector=PsycopgConnector(conninfo=order.addresses["postgres"]))

    async with app.open_async():
        yield lambda fresh: _defer(app, order, fresh)


async def _defer(app: App, order: Order, fresh: Fresh) -> None:
    """Defer jobs, those that are due at one moment together."""
    for due, together in groupby(fresh, key=itemgetter(1)):
        task = app.configure_task("run_message", schedule_at=datetime.fromtimestamp(due, UTC))
        await task.batch_defer_async(*(_arguments(name, 0, order.payload(name)) for name, _ in together))


def _arguments(message_id: str, version: int, payload: Mapping[str, str]) -> dict[str, Any]:
    return {"message_id": message_id, "version": version, "payload": payload}


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""
    app = App(connector=PsycopgConnector(conninfo=order.addresses["postgres"], max_size=10))

    @app.task(name="run_message")
    async def run_message(message_id: str, version: int, payload: dict[str, str]) -> None:
        delay = await handle(message_id, version)
        next_job = app.configure_task("run_message", schedule_in={"milliseconds": round(1000 * delay)})
        await next_job.defer_async(**_arguments(message_id, version + 1, payload))

    async with app.open_async(), asyncio.TaskGroup() as tasks:
        tasks.create_task(_retry_stalled(app))
        tasks.create_task(
            app.run_worker_async(
                concurrency=order.in_flight or CONCURRENCY,
                delete_jobs="successful",
                install_signal_handlers=False,
                fetch_job_polling_interval=0.5,
                update_heartbeat_interval=2.0,
                stalled_worker_timeout=STALLED_SECONDS,
            )
        )


async def _retry_stalled(app: App) -> None:
    """Retry what a killed worker had begun, as the documentation advises; by itself, nobody does."""
    while True:
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
            await app.job_manager.retry_job(job)
        await asyncio.sleep(STALLED_SECONDS)
