"""Leaders: what spends a lane's idle capacity begins with the lane's first worker, where the settings say so."""

from collections.abc import Iterable

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from shared.errors import InvalidSetting
from shared.idle import IDLE_WORKFLOW, idle_workflow_id
from shared.lanes import LANES, task_queue
from shared.settings import Settings
from shared.temporal import CALL_TIMEOUT, translate_rpc_error


def check_idle_lanes(settings: Settings) -> None:
    """Raise InvalidSetting for a lane that does not exist."""
    if unknown := [lane for lane in settings.idle_lanes if lane not in LANES]:
        raise InvalidSetting(f"idle_lanes: there is no lane {unknown[0]!r}; use {', '.join(LANES)}")


async def begin_leaders(client: Client, settings: Settings, lanes: Iterable[str]) -> None:
    """Begin the leaders of those of `lanes` that are to spend idle capacity; one that is there already stays as it is.

    So a lane that a person has switched off stays off when workers are started anew. Raises RetryLater and Misconfigured.
    """
    for lane in lanes:
        if lane not in settings.idle_lanes:
            continue
        queue = task_queue(settings.task_queue_prefix, lane)
        try:
            await client.start_workflow(
                IDLE_WORKFLOW,
                {"is_on": True},
                id=idle_workflow_id(queue),
                task_queue=queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                rpc_timeout=CALL_TIMEOUT,
            )
        except RPCError as exc:
            raise translate_rpc_error(exc) from exc
