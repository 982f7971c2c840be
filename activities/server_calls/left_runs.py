"""Left runs: what packs continued from is deleted minutes later and slowly, so that no delete waits in the server."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

DELETE_AFTER = timedelta(minutes=3)
"""Six times what a server takes by default to save that a closing is acknowledged (`history.*UpdateAckInterval`).

A delete that comes before that is tried again and again, and holds up the transfer queue behind it meanwhile.
"""

DELETE_EVERY = timedelta(seconds=0.02)
"""A worker process deletes at most so often: more than it can make packs leave runs, and little for a server."""

KEPT_MOST = 20_000
CALL_TIMEOUT = timedelta(seconds=5)


class LeftRuns:
    """Runs that packs have continued from, forgotten with their process: the namespace's retention deletes those."""

    def __init__(self) -> None:
        self._delete_after = DELETE_AFTER.total_seconds()
        self._runs: dict[str, tuple[str, float]] = {}

    def add(self, workflow_id: str, run_id: str) -> None:
        """Have a run deleted later on; one that is known already, or more than can be kept, changes nothing."""
        if run_id not in self._runs and len(self._runs) < KEPT_MOST:
            self._runs[run_id] = (workflow_id, asyncio.get_running_loop().time() + self._delete_after)

    async def delete_when_due(self, client: Client) -> None:
        """Delete one after the other once its time has come; for ever."""
        pause = DELETE_EVERY.total_seconds()
        while True:
            run_id, (workflow_id, due) = next(iter(self._runs.items()), ("", ("", 0.0)))
            wait = due - asyncio.get_running_loop().time() if run_id else self._delete_after
            await asyncio.sleep(min(max(wait, pause), 1.0))
            if run_id and wait <= 0:
                with contextlib.suppress(RPCError):  # the server's own retention deletes it too, later
                    await _delete(client, workflow_id, run_id)
                del self._runs[run_id]


async def _delete(client: Client, workflow_id: str, run_id: str) -> None:
    request = DeleteWorkflowExecutionRequest(
        namespace=client.namespace, workflow_execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    )
    await client.workflow_service.delete_workflow_execution(request, timeout=CALL_TIMEOUT)
