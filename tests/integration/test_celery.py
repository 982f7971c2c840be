"""Celery with a real broker and worker: later tasks wait in dormice, and reach the broker as Celery sends them."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.handlers.celery import celery
from bench.peers.servers import RedisServer, find_redis
from shared.errors import Misconfigured
from shared.settings import Secret, Settings
from starter.web.application import make_application
from starter.web.documents import Installation
from starter.web.server import serving
from tests.celery_app import Place, celery_worker, make_app, read_notes
from tests.conftest import Serve, wait_until
from tests.integration.test_control import registry_of

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    """Redis of this test's own."""
    try:
        find_redis()
    except Misconfigured as exc:
        pytest.skip(f"{exc}, or run './run servers'")
    (tmp_path / "redis").mkdir()
    async with RedisServer(tmp_path / "redis") as running:
        yield running


@pytest.fixture
async def place(client: Client, settings: Settings, redis: RedisServer, kind: str, encoding: str) -> AsyncIterator[Place]:
    """A broker, and the HTTP API of dormice for a kind of this test's own."""
    installation = Installation(
        client=client, settings=settings, registry=registry_of(replace(celery, kind=kind), encoding)
    )
    async with serving(make_application(installation, "1", None, {"127.0.0.1"}), "127.0.0.1", 0) as url:
        yield Place(f"redis://{redis.address}/0", url, kind)


async def test_tasks_that_are_due_later_arrive_once_and_give_their_results(
    serve: Serve, place: Place, tmp_path: Path
) -> None:
    app = make_app(place)
    add, note, show = (app.tasks[name] for name in ("add", "note", "show"))
    handlers = replace(celery, kind=place.kind)
    async with (
        celery_worker(place, tmp_path / "celery.log"),
        serve(handlers, lanes=("short",), celery_broker_url=Secret(place.broker)),
    ):
        eta = datetime.now(UTC) + timedelta(seconds=2)
        sums = [await asyncio.to_thread(add.apply_async, (n, n), countdown=1) for n in range(5)]
        shown = await asyncio.to_thread(show.apply_async, ("x",), eta=eta, headers={"mine": "1"}, priority=3)
        await asyncio.to_thread(note.apply_async, ("a",), countdown=1, task_id="fixed")
        assert [one.state for one in sums] == ["PENDING"] * 5
        assert [await asyncio.to_thread(one.get, 20) for one in sums] == [0, 2, 4, 6, 8]
        print(await asyncio.to_thread(shown.get, 20))
        await wait_until(lambda: read_notes(place) == ["a"], "")
        retried = await asyncio.to_thread(app.tasks["try_again"].apply_async, (1, 2), countdown=1)
        assert await asyncio.to_thread(retried.get, 20) == 2
