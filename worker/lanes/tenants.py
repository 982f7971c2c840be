"""Tenants: the share of a busy lane that each one gets, set on the server when workers start."""

import logging
from collections.abc import Iterable

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from shared.errors import InvalidSetting
from shared.lanes import task_queue
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, describe_queue, translate_rpc_error

logger = logging.getLogger(__name__)

LEAST, MOST = 0.001, 1000.0
"""The range of Temporal's fairness weights."""

TENANTS_MAX = 1000
"""The number of tenants whose weights Temporal keeps for a task queue."""


def read_weights(settings: Settings) -> dict[str, float]:
    """Return the weights of tenants in the settings; raises InvalidSetting."""
    weights: dict[str, float] = {}
    for text in settings.tenant_weights:
        tenant, equals, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not (equals and tenant.strip() and LEAST <= weight <= MOST):
            raise InvalidSetting(
                f"tenant_weights: {text!r} is no TENANT=WEIGHT with a weight from {LEAST:g} to {MOST:g}; "
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
