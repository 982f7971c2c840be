"""What a lane's first worker starts if the settings say so: the lane's idle workflow and its canary."""

import time
from collections.abc import Iterable

from temporalio.client import Client
from temporalio.common import TypedSearchAttributes, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from activities.handlers.canary import CANARY
from shared.errors import InvalidSetting
from shared.keepers.idle import IDLE_WORKFLOW, idle_workflow_id
from shared.lanes import LANES, task_queue
from shared.messages.message import MessageState
from shared.messages.placement import MESSAGE_WORKFLOW
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_error
from shared.temporal.search_attributes import attributes_at_start


def check_lanes(settings: Settings) -> None:
    """Raise InvalidSetting for a lane that does not exist."""
    for name, lanes in (("idle_lanes", settings.idle_lanes), ("canary_lanes", settings.canary_lanes)):
        if unknown := [lane for lane in lanes if lane not in LANES]:
            raise InvalidSetting(f"{name}: there is no lane {unknown[0]!r}; use {', '.join(LANES)}")


async def begin_leaders(client: Client, settings: Settings, lanes: Iterable[str]) -> None:
    """Start what all workers share, on those of `lanes` that the settings name; what is running stays as it is.

    So what a person has switched off, or paused, stays so when workers restart. Raises RetryLater and Misconfigured.
    """
    for lane in lanes:
        queue = task_queue(settings.task_queue_prefix, lane)
        try:
            if lane in settings.idle_lanes:
                await client.start_workflow(
                    IDLE_WORKFLOW,
                    {"is_on": True},
                    id=idle_workflow_id(queue),
                    task_queue=queue,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    rpc_timeout=CALL_TIMEOUT,
                )
            if lane in settings.canary_lanes:
                await _begin_canary(client, settings, lane, queue)
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc


async def _begin_canary(client: Client, settings: Settings, lane: str, queue: str) -> None:
    """Start the message; its id is the task queue, because several environments may share a namespace."""
    now = float(int(time.time()))
    state = MessageState(CANARY, queue, lane, now, now)
    await client.start_workflow(
        MESSAGE_WORKFLOW,
        state.dump(),
        id=state.workflow_id,
        task_queue=queue,
        task_timeout=settings.workflow_task_timeout,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        search_attributes=TypedSearchAttributes(attributes_at_start(state, now, settings.index_after.total_seconds())),
        static_summary=f"{CANARY} {queue}",
        rpc_timeout=CALL_TIMEOUT,
    )
