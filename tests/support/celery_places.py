"""A broker of Celery with dormice beside it, which holds tasks for it."""

import contextlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.handlers.celery import celery
from bench.peers.servers import RedisServer, find_redis
from shared.errors import Misconfigured
from shared.settings import Secret, Settings
from starter.extras.web.documents import Installation
from starter.extras.web.serving.application import make_application
from starter.extras.web.serving.server import serving
from tests.conftest import Serve
from tests.integration.test_control import registry_of
from tests.support.celery_app import Place


@contextlib.asynccontextmanager
async def running_redis(folder: Path) -> AsyncGenerator[RedisServer]:
    """Run Redis for the length of an `async with` block; skips the test where there is none."""
    try:
        find_redis()
    except Misconfigured as exc:
        pytest.skip(f"{exc}, as './run servers' does")
    (folder / "redis").mkdir()
    async with RedisServer(folder / "redis") as running:
        yield running


def serving_api(
    client: Client, settings: Settings, kind: str, encoding: str, port: int = 0
) -> AbstractAsyncContextManager[str]:
    """Serve the HTTP API for a kind of held tasks."""
    installation = Installation(
        client=client, settings=settings, registry=registry_of(replace(celery, kind=kind), encoding)
    )
    return serving(make_application(installation, "1", None, {"127.0.0.1"}), "127.0.0.1", port)


@contextlib.asynccontextmanager
async def running_place(
    client: Client, settings: Settings, folder: Path, kind: str, encoding: str
) -> AsyncGenerator[Place]:
    """Run Redis, and the HTTP API for a kind of held tasks."""
    async with running_redis(folder) as redis, serving_api(client, settings, kind, encoding) as url:
        yield Place(f"redis://{redis.address}/0", url, kind)


def sending(serve: Serve, place: Place, **settings: Any) -> AbstractAsyncContextManager[None]:
    """Run the worker that sends held tasks to the broker."""
    settings = {"celery_broker_url": Secret(place.broker), **settings}
    return serve(replace(celery, kind=place.kind), lanes=("short",), **settings)
