"""APScheduler 3 on PostgreSQL: a job with a date for each message, added again by its own function."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from bench.peers.work import Fresh, Handle, Order, Send

_state: dict[str, Any] = {}
"""Jobs are stored by the name of their function, so that finds here what it needs."""


async def run_job(message_id: str, version: int, payload: dict[str, str]) -> None:
    """Do the work for a message, and add its next job."""
    delay = await _state["handle"](message_id, version)
    due = datetime.now(UTC) + timedelta(seconds=delay)
    _add(_state["scheduler"], message_id, version + 1, payload, due)


def _add(scheduler: Any, message_id: str, version: int, payload: dict[str, str], due: datetime) -> None:
    scheduler.add_job(
        run_job,
        "date",
        run_date=due,
        args=(message_id, version, payload),
        id=message_id,
        replace_existing=True,
    )


def _build(order: Order) -> Any:
    return AsyncIOScheduler(
        jobstores={"default": SQLAlchemyJobStore(url=order.sqlalchemy_url)},
        executors={"default": AsyncIOExecutor()},
        job_defaults={"misfire_grace_time": None, "coalesce": True},
        timezone=UTC,
    )


async def fill(order: Order) -> None:
    """Store all messages."""
    scheduler = _build(order)
    due = order.first_due
    scheduler.start(paused=True)
    for message_id in order.message_ids():
        _add(scheduler, message_id, 0, order.payload(message_id), due)
    scheduler.shutdown()


@contextlib.asynccontextmanager
async def sending(order: Order) -> AsyncGenerator[Send]:
    """Send to the scheduler of this process: it looks into its store only when it has something to run, or is told."""

    async def send(fresh: Fresh) -> None:
        for name, due in fresh:
            _add(_state["scheduler"], name, 0, order.payload(name), datetime.fromtimestamp(due, UTC))

    yield send


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""
    scheduler = _build(order)
    _state.update(handle=handle, scheduler=scheduler)
    scheduler.start()
    await asyncio.Event().wait()
