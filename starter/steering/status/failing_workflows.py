"""Failing workflows: finds those whose task fails repeatedly, by what the server records of them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription

from shared.lanes import LANES, task_queue
from shared.temporal.connect import CALL_TIMEOUT, translate_rpc_errors
from starter.steering.selection import quote

ATTEMPTS_MIN = 2
"""A task that failed once is tried again at once, and may then succeed."""

PAGE_SIZE = 20

_HARMLESS = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_STICKY_TASK_QUEUE,
)
"""With these the server itself asks for another attempt; none of them means that a worker could not continue."""


@dataclass(frozen=True, slots=True)
class FailingWorkflow:
    """One workflow that stands still because its task fails."""

    workflow_id: str
    run_id: str
    attempts: int
    reason: str
    """The worker's message at its last failure."""

    def describe(self) -> str:
        """Describe the failure, and name the command that helps, in half a sentence."""
        failure = f"the task of its workflow {self.workflow_id} fails (attempt {self.attempts}): {self.reason}"
        return f"{failure}; 'dormice repair --help' says what to do"


async def find_standstill(client: Client, workflow_id: str, run_id: str | None = None) -> FailingWorkflow | None:
    """Return why a workflow makes no progress, or None when its task does not fail."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    return await to_standstill(client, await handle.describe(rpc_timeout=CALL_TIMEOUT))


async def to_standstill(client: Client, described: WorkflowExecutionDescription) -> FailingWorkflow | None:
    """Do what `find_standstill` does for a workflow that is described already."""
    attempts = described.raw_description.pending_workflow_task.attempt
    if attempts < ATTEMPTS_MIN:
        return None

    async for event in read_backwards(client, described.id, described.run_id):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            return None  # the task was lost with its worker, nothing worse
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            failed = event.workflow_task_failed_event_attributes
            if failed.cause not in _HARMLESS:
                reason = failed.failure.message.partition("\n")[0] or WorkflowTaskFailedCause.Name(failed.cause)
                return FailingWorkflow(described.id, described.run_id, attempts, reason)

    return None


def query_reported(prefix: str) -> str:
    """Write the query for what the server itself reports, after a task failed several times in a row (default five)."""
    queues = ", ".join(quote(task_queue(prefix, lane)) for lane in LANES)
    reported = "TemporalReportedProblems IN ('category=WorkflowTaskFailed')"
    return f"{reported} AND TaskQueue IN ({queues}) AND ExecutionStatus = 'Running'"


async def list_standstills(client: Client, prefix: str) -> AsyncIterator[FailingWorkflow]:
    """Find the workflows on a prefix's lanes that the server reports; raises RetryLater or Misconfigured."""
    with translate_rpc_errors():
        async for execution in client.list_workflows(query_reported(prefix), rpc_timeout=CALL_TIMEOUT):
            if (found := await find_standstill(client, execution.id, execution.run_id)) is not None:
                yield found


async def list_since_last_good(client: Client, failing: FailingWorkflow) -> list[HistoryEvent]:
    """List the events from the completion of the last good task on, oldest first; all if no task was completed."""
    events: list[HistoryEvent] = []
    async for event in read_backwards(client, failing.workflow_id, failing.run_id):
        events.append(event)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            break
    return events[::-1]


async def read_backwards(client: Client, workflow_id: str, run_id: str) -> AsyncIterator[HistoryEvent]:
    """Read the events of a run, newest first."""
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        maximum_page_size=PAGE_SIZE,
    )
    while True:
        page = await client.workflow_service.get_workflow_execution_history_reverse(request, timeout=CALL_TIMEOUT)
        for event in page.history.events:
            yield event
        if not page.next_page_token:
            return
        request.next_page_token = page.next_page_token
