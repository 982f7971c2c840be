"""Calls to the server about one workflow by its id, which may run or not."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import Priority, WorkflowExecution
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import UpdateWorkflowExecutionOptionsRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import RawValue
from temporalio.service import RPCError

from shared.temporal.connect import CALL_TIMEOUT, is_missing


async def signal_beginning(
    client: Client,
    workflow: str,
    name: str,
    task_queue: str,
    signal: str,
    *given: Any,
    memo: Mapping[str, Any] | None = None,
) -> None:
    """Send a signal to the workflow `name`, which is started on a task queue, with `memo`, if it does not run.

    Raises RPCError.
    """
    await client.start_workflow(
        workflow,
        {},
        id=name,
        task_queue=task_queue,
        memo=memo,
        start_signal=signal,
        start_signal_args=given,
        rpc_timeout=CALL_TIMEOUT,
    )


async def find_workflow(client: Client, name: str) -> WorkflowExecutionDescription | None:
    """Describe a workflow, None if there is no such workflow; no worker is needed. Raises RPCError."""
    try:
        return await client.get_workflow_handle(name).describe(rpc_timeout=CALL_TIMEOUT)
    except RPCError as exc:
        if is_missing(exc):
            return None
        raise


async def read_memo(client: Client, name: str) -> Mapping[str, Any] | None:
    """Give the memo of a workflow, None if there is no such workflow; no worker is needed. Raises RPCError."""
    described = await find_workflow(client, name)
    if described is None:
        return None
    memo = await described.memo()
    for value in memo.values():
        if isinstance(value, RawValue):  # a worker's client leaves what it can't decrypt; this raises
            described.data_converter.payload_converter.from_payload(value.payload, object)
    return memo


async def set_priority(client: Client, workflow_id: str, priority: int) -> None:
    """Set a run's priority key, also of a task that waits already; the Python client has no wrapper for this call."""
    await client.workflow_service.update_workflow_execution_options(
        UpdateWorkflowExecutionOptionsRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            workflow_execution_options=WorkflowExecutionOptions(priority=Priority(priority_key=priority)),
            update_mask=FieldMask(paths=["priority.priority_key"]),
        )
    )
