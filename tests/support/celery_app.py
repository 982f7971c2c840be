"""An application of Celery whose later tasks wait in dormice; run as a program, it is Celery's worker for it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import redis
from celery import Celery, Task

from dormice.celery import DormiceControl, DormiceTask
from tests.conftest import wait_until
from tests.support.processes import ROOT


@dataclass(frozen=True, slots=True)
class Place:
    """Where an application's broker and dormice are; `queue` and `kind` are its own."""

    broker: str
    api: str
    kind: str
    threshold: float = 0.0


def make_app(place: Place, base: type = DormiceTask, **conf: Any) -> Any:
    """Make the application with its tasks."""
    app: Any = Celery("tests", broker=place.broker, task_cls=base, control=DormiceControl)
    app.conf.update(
        {
            "dormice_url": place.api,
            "dormice_kind": place.kind,
            "dormice_threshold": place.threshold,
            "task_default_queue": place.kind,
            "result_backend": place.broker,
            "worker_hijack_root_logger": False,
            "result_backend_transport_options": {"retry_policy": {"max_retries": 1, "timeout": 1}},
            **conf,
        }
    )
    log: Any = redis.Redis.from_url(place.broker)  # pyright: ignore[reportUnknownMemberType] — its options have no types

    @app.task(shared=False, name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(shared=False, name="note")
    def note(*words: Any) -> int:
        return cast("int", log.rpush(f"{place.kind}-notes", " ".join(map(str, words))))

    @app.task(shared=False, name="total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(shared=False, name="try_again", bind=True)
    def try_again(self: Any, countdown: float, times: int) -> int:
        if self.request.retries < times:
            raise self.retry(countdown=countdown)
        return self.request.retries

    return app


def read_notes(place: Place) -> list[str]:
    """Give what the task `note` has written, in its order."""
    log: Any = redis.Redis.from_url(place.broker)  # pyright: ignore[reportUnknownMemberType] — its options have no types
    return [line.decode() for line in log.lrange(f"{place.kind}-notes", 0, -1)]


@contextlib.asynccontextmanager
async def celery_worker(
    place: Place, log: Path, base: str = "DormiceTask"
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Run Celery's worker for the length of an `async with` block, once it takes tasks; killed at its end."""
    arguments = [place.broker, place.api, place.kind, str(place.threshold), base]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.celery_app", *arguments),
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "default"},
            stdout=output,
            stderr=output,
        )

    try:
        await wait_until(lambda: " ready." in log.read_text("utf-8"), f"Celery's worker is ready, see {log}")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    broker, api, kind, threshold, base = sys.argv[1:]
    app = make_app(Place(broker, api, kind, float(threshold)), {"Task": Task, "DormiceTask": DormiceTask}[base])
    app.worker_main(["worker", "--pool", "solo", "--loglevel", "info", "--without-mingle", "--without-gossip"])
