"""What is alive on the server of the session: how many messages of a test, and packs that a test has left behind."""

import contextlib

from temporalio.client import Client
from temporalio.service import RPCError

from shared.messages.placement import pack_workflow_id
from shared.settings import Settings
from tests.conftest import wait_until


async def count_alive(client: Client, settings: Settings) -> int:
    """Count the messages on this test's task queue."""
    return (await client.count_workflows(f"TaskQueue = '{settings.task_queue_prefix}-short'")).count


async def check_alive(client: Client, settings: Settings, count: int, seconds: float = 45.0) -> None:
    """Fail unless this test's task queue has `count` messages once the index, which lags, has them."""

    async def is_reached() -> bool:
        return await count_alive(client, settings) >= count

    await wait_until(is_reached, f"{count} messages in the index", seconds)
    assert await count_alive(client, settings) == count


async def end_packs(client: Client, kind: str, packs: int) -> None:
    """End the packs that other tests of a kind have left: they live on task queues that nobody serves any more."""
    for index in range(packs):
        with contextlib.suppress(RPCError):  # it was never begun
            await client.get_workflow_handle(pack_workflow_id(kind, index)).terminate("left by another test")
