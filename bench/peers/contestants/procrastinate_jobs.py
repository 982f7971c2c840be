"""procrastinate on PostgreSQL: a job for each message, which defers the next one; stalled jobs are retried."""

import asyncio
from collections.abc import Mapping
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.work import Handle, Order

CONCURRENCY = 100
FILLED_AT_ONCE = 1000
STALLED_SECONDS = 10.0


async def fill(order: Order) -> None:
    """Make the tables, and defer a job for each message, due now."""
    app = App(connector=PsycopgConnector(conninfo=order.addresses["postgres"]))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        task, ids = app.configure_task("run_message"), order.message_ids()
        for first in range(0, len(ids), FILLED_AT_ONCE):
            some = ids[first : first + FILLED_AT_ONCE]
            await task.batch_defer_async(*(_arguments(name, 0, order.payload(name)) for name in some))


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
                concurrency=CONCURRENCY,
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
