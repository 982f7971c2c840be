"""One process serves a kind: a second one waits, and of two that begin at once, one goes."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client

from activities.idle.capacity import Capacity
from shared.errors import RetryLater
from shared.lanes import task_queue
from shared.settings import Settings
from shared.temporal.connect import connect
from starter.extras.frontier.frontier import Frontier, FrontierOptions
from starter.extras.frontier.url_store import LANE, prepare_settings
from starter.local.embedded import EmbeddedServer
from tests.conftest import wait_until
from worker.main import HEARTBEAT

pytestmark = pytest.mark.long


async def connect_as(server: EmbeddedServer, identity: str) -> Client:
    """Connect as another process would, whose worker others see."""
    client = await connect(Settings(), {"TEMPORAL_ADDRESS": server.address}, heartbeat=HEARTBEAT)
    return await Client.connect(
        server.address,
        identity=identity,
        data_converter=client.data_converter,
        runtime=client.service_client.config.runtime,
    )


async def test_a_second_process_waits_for_the_first(server: EmbeddedServer, settings: Settings, kind: str) -> None:
    """And serves as soon as that has ended."""
    options = FrontierOptions(kind=kind, packs=1, drain=timedelta(seconds=5))
    first, second = [Frontier(await connect_as(server, name), settings, options) for name in ("a", "b")]
    stopping = [asyncio.Event(), asyncio.Event()]
    running = [asyncio.create_task(first.run(stopping[0]))]
    try:
        await wait_until(first.started.is_set, "the first serves")
        queue = task_queue(prepare_settings(settings, kind).task_queue_prefix, LANE)
        await wait_until(Capacity(await server.connect(), queue).find_identities, "the server has heard of it")
        running.append(asyncio.create_task(second.run(stopping[1])))
        await wait_until(lambda: "another" in second.gap, "the second waits")
        await asyncio.sleep(2)
        assert not second.started.is_set()

        stopping[0].set()
        await running[0]
        await wait_until(second.started.is_set, "the second serves")
    finally:
        for each in stopping:
            each.set()
        await asyncio.gather(*running)


async def test_of_two_that_begin_at_once_one_goes(server: EmbeddedServer, settings: Settings, kind: str) -> None:
    """The other serves on."""
    options = FrontierOptions(kind=kind, packs=1, drain=timedelta(seconds=5))
    first, second = [Frontier(await connect_as(server, name), settings, options) for name in ("a", "b")]
    stopping = asyncio.Event()
    running = asyncio.create_task(first.run(stopping))
    with pytest.raises(RetryLater, match="a serves this kind, too"):
        await second.run(stopping)
    assert not running.done()
    stopping.set()
    await running
