"""Left runs: the runs that packs continued from, deleted late and slowly, so that no delete blocks the server."""

import asyncio
import contextlib
from datetime import timedelta

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

DELETE_AFTER = timedelta(minutes=3)
"""Six times a server's default interval for saving that it has seen a closing (`history.*UpdateAckInterval`). An
earlier delete is retried again and again, and meanwhile blocks the transfer queue behind it."""

DELETE_EVERY = timedelta(seconds=0.02)
"""Shortest time between two deletes of a worker process: it deletes faster than its packs can leave runs, and the load
on a server is small."""

KEPT_MOST = 20_000
CALL_TIMEOUT = timedelta(seconds=5)


class ContinuedRuns:
    """Runs that packs have continued from; if the process ends, the namespace's retention deletes them."""

    def __init__(self) -> None:
        self._delete_after = DELETE_AFTER.total_seconds()
        self._runs: dict[str, tuple[str, float]] = {}

    def add(self, workflow_id: str, run_id: str) -> None:
        """Note a run for deletion; does nothing if it is known already or `KEPT_MOST` runs are noted."""
        if run_id not in self._runs and len(self._runs) < KEPT_MOST:
            self._runs[run_id] = (workflow_id, asyncio.get_running_loop().time() + self._delete_after)

    async def delete_when_due(self, client: Client) -> None:
        """Delete each noted run once its time has come, one by one, for ever."""
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
