"""The canary of a lane: once for all its workers, every minute, whatever else the lane does."""

import dataclasses
import time

from temporalio.client import Client

from activities.handlers.canary import CANARY, canary
from shared.lanes import task_queue
from shared.messages.placement import workflow_id
from shared.settings import Settings
from starter.control import Control
from starter.steering.selection import Selection
from tests.conftest import Serve, wait_until
from worker.lanes.starting import begin_leaders


async def test_a_lane_has_one_canary_however_many_workers_begin(
    client: Client, settings: Settings, serve: Serve, control: Control
) -> None:
    """It comes back a minute later on its lane, is pulled forward by nobody, and one that is stopped is begun anew."""
    wanted = dataclasses.replace(settings, canary_lanes=("medium",))
    name = task_queue(settings.task_queue_prefix, "medium")
    handle = client.get_workflow_handle(workflow_id(CANARY, name))

    async def has_run() -> float | None:
        status = (await control.show(CANARY, name)).status
        return status["due_at_epoch"] if status and status["version"] == 1 else None

    async with serve(canary, lanes=("medium",)):
        for _ in range(2):
            await begin_leaders(client, wanted, ["short", "medium"])
        first = (await handle.describe()).run_id
        due_at = await wait_until(has_run, "it has run")
        view = await control.show(CANARY, name)
        await begin_leaders(client, wanted, ["medium"])

        assert 0 < due_at - time.time() <= 60
        assert view.listed.lane == "medium"
        assert view.status is not None
        assert view.status["earliest_at"] == view.status["due_at"]
        assert (await handle.describe()).run_id == first
        await wait_until(lambda: _has_one(control), "it is in the lists, as any message")
        await control.stop(CANARY, name)
        await handle.result()
        await begin_leaders(client, wanted, ["medium"])
        assert await wait_until(has_run, "it has begun anew")
        await control.stop(CANARY, name)


async def _has_one(control: Control) -> bool:
    return await control.count(Selection(kind=CANARY, lane="medium")) == 1
