"""APScheduler 3 on PostgreSQL: a job with a date for each message, added again by its own function."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from apscheduler.executors.asyncio import AsyncIOExecutor
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from bench.peers.work import Handle, Order

_state: dict[str, Any] = {}
"""Jobs are stored by the name of their function, so that finds here what it needs."""


async def run_job(message_id: str, version: int, payload: dict[str, str]) -> None:
    """Do the work for a message, and add its next job."""
    delay = await _state["handle"](message_id, version)
    _add(_state["scheduler"], message_id, version + 1, payload, delay)


def _add(scheduler: Any, message_id: str, version: int, payload: dict[str, str], delay: float) -> None:
    scheduler.add_job(
        run_job,
        "date",
        run_date=datetime.now(UTC) + timedelta(seconds=delay),
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
    """Store all messages as due now."""
    scheduler = _build(order)
    scheduler.start(paused=True)
    for message_id in order.message_ids():
        _add(scheduler, message_id, 0, order.payload(message_id), 0.0)
    scheduler.shutdown()


async def serve(order: Order, handle: Handle) -> None:
    """Run what is due, for ever."""
    scheduler = _build(order)
    _state.update(handle=handle, scheduler=scheduler)
    scheduler.start()
    await asyncio.Event().wait()
