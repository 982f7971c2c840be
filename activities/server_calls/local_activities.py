"""Small local activities that messages and packs need beside their handlers."""

from datetime import timedelta
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity
from temporalio.api.common.v1 import Priority, WorkflowExecution
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client
from temporalio.common import TypedSearchAttributes

from shared.messages.message import SERIAL
from shared.messages.placement import PACK_WORKFLOW, pack_workflow_id
from shared.temporal.search_attributes import pack_attributes_at_start

SET_PRIORITY = "set_priority"
FORWARD = "forward_signals"


@activity.defn(name=SET_PRIORITY)
async def set_own_priority(priority: int) -> None:
    """Set the server-side priority of the workflow that calls this; idempotent."""
    await set_priority(activity.client(), activity.info().workflow_id or "", priority)


@activity.defn(name=FORWARD)
async def forward_signals(call: Any) -> None:
    """Send signals on to other packs of a kind, in order; packs that do not run yet are started.

    It is idempotent: chunks and steering have tokens by which packs recognize a repetition.
    """
    client, pack = activity.client(), dict(call["pack"])
    task_timeout = timedelta(seconds=pack.pop("task_timeout"))
    for index, signal, wire in call["strays"]:
        await client.start_workflow(
            PACK_WORKFLOW,
            {**pack, "index": index},
            id=pack_workflow_id(pack["kind"], index),
            task_queue=activity.info().task_queue,
            task_timeout=task_timeout,
            memo={SERIAL: 1} if pack.get(SERIAL) else None,
            search_attributes=TypedSearchAttributes(pack_attributes_at_start(pack["kind"], pack["lane"])),
            start_signal=signal,
            start_signal_args=[wire],
        )


async def set_priority(client: Client, workflow_id: str, priority: int) -> None:
    """Set a run's priority key: it moves a workflow task that already waits in the queue; later activities inherit it.

    The Python client has no wrapper for this call.
    """
    await client.workflow_service.update_workflow_execution_options(
        UpdateWorkflowExecutionOptionsRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            workflow_execution_options=WorkflowExecutionOptions(priority=Priority(priority_key=priority)),
            update_mask=FieldMask(paths=["priority.priority_key"]),
        )
    )
