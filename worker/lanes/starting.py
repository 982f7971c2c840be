"""What workers set up for a lane when they start: tenants' shares, and by settings an idle workflow and a canary."""

import logging
import time
from collections.abc import Iterable

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes, WorkflowIDConflictPolicy
from temporalio.service import RPCError, RPCStatusCode

from activities.handlers.canary import CANARY
from shared.errors import InvalidSetting
from shared.keepers.idle import IDLE_WORKFLOW, idle_workflow_id
from shared.lanes import LANES, task_queue
from shared.messages.message import MessageState
from shared.messages.placement import MESSAGE_WORKFLOW
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, describe_queue, translate_rpc_error, translate_rpc_errors
from shared.temporal.search_attributes import attributes_at_start

logger = logging.getLogger(__name__)

# the range of Temporal's fairness weights
WEIGHT_MIN = 0.001
WEIGHT_MAX = 1000.0
TENANTS_MAX = 1000  # the number of tenants whose weights Temporal keeps for a task queue


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
        with translate_rpc_errors():
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


def read_weights(settings: Settings) -> dict[str, float]:
    """Return the weights of tenants in the settings; raises InvalidSetting."""
    weights: dict[str, float] = {}
    for text in settings.tenant_weights:
        tenant, equals, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0

        if not (equals and tenant.strip() and WEIGHT_MIN <= weight <= WEIGHT_MAX):
            raise InvalidSetting(
                f"tenant_weights: {text!r} is no TENANT=WEIGHT with a weight from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}; "
                "write for example acme=3,trial=0.2"
            )

        weights[tenant.strip()] = weight

    if len(weights) > TENANTS_MAX:
        raise InvalidSetting(f"tenant_weights: names {len(weights):,} tenants; the server keeps {TENANTS_MAX:,}")
    return weights


async def weigh_tenants(client: Client, settings: Settings, lanes: Iterable[str]) -> None:
    """Set tenants' weights on the server, if it supports them and we have any. Raises RetryLater and Misconfigured."""
    if not (weights := read_weights(settings)):
        return

    for lane in lanes:
        queue = task_queue(settings.task_queue_prefix, lane)
        for sort in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
            try:
                await _set_weights(client, queue, sort, weights)
            except RPCError as exc:
                if exc.status is not RPCStatusCode.UNIMPLEMENTED:
                    raise translate_rpc_error(exc) from exc
                logger.warning("the server knows no weights of tenants", extra={"action": "tenants_not_weighed"})
                return


async def _set_weights(client: Client, queue: str, sort: TaskQueueType.ValueType, weights: dict[str, float]) -> None:
    described = await describe_queue(client, queue, sort, report_config=True)
    present = dict(described.config.fairness_weight_overrides)
    if {tenant: round(weight, 4) for tenant, weight in present.items()} == weights:
        return

    await client.workflow_service.update_task_queue_config(
        UpdateTaskQueueConfigRequest(
            namespace=client.namespace,
            identity=client.identity,
            task_queue=queue,
            task_queue_type=sort,
            set_fairness_weight_overrides=weights,
            unset_fairness_weight_overrides=[tenant for tenant in present if tenant not in weights],
        ),
        timeout=CALL_TIMEOUT,
    )
