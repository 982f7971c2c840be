"""The small local activity that a message needs beside its handler: setting its priority on the server."""

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio import activity
from temporalio.api.common.v1 import Priority, WorkflowExecution
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client

SET_PRIORITY = "set_priority"


@activity.defn(name=SET_PRIORITY)
async def set_own_priority(priority: int) -> None:
    """Set the server-side priority of the workflow that calls this; doing it twice changes nothing more."""
    await set_priority(activity.client(), activity.info().workflow_id or "", priority)


async def set_priority(client: Client, workflow_id: str, priority: int) -> None:
    """Set a run's priority key: a workflow task that already waits in the queue is moved, later activities inherit it.

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
