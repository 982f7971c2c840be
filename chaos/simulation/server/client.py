"""The client: dormice's own code uses it as Temporal's client; it calls the model of the server, and may lose calls."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from chaos.simulation.faults import Faults
from chaos.simulation.replica.replica import Replica
from chaos.simulation.server.run import Run
from chaos.simulation.server.server import Server
from shared.temporal.converter import DATA_CONVERTER

CALL_SECONDS = 0.02


class Answer(NamedTuple):
    """The server's response to a signal-with-start."""

    run_id: str
    started: bool


class SimulatedClient:
    """The client of one process; dormice builds requests from `data_converter`, `namespace` and `identity`."""

    def __init__(self, server: Server, faults: Faults, rng: random.Random) -> None:
        self._server = server
        self._faults = faults
        self._rng = rng
        self.data_converter = DATA_CONVERTER
        self.namespace = "default"
        self.identity = "simulated"
        self.workflow_service = self

    async def signal_with_start_workflow_execution(
        self, request: SignalWithStartWorkflowExecutionRequest, **_: Any
    ) -> Answer:
        """Signal a workflow, and start it first if it does not exist."""
        queue = request.task_queue.name
        workflow_type = request.workflow_type.name
        return await self._call(
            lambda: self._signal_with_start(
                workflow_type,
                request.workflow_id,
                queue,
                list(request.input.payloads),
                (request.signal_name, list(request.signal_input.payloads), request.request_id),
            )
        )

    async def start_workflow(
        self,
        workflow_type: str,
        argument: Any,
        *,
        id: str,  # noqa: A002 — the SDK's own name
        task_queue: str,
        start_signal: str,
        start_signal_args: Sequence[Any],
        **_: Any,
    ) -> None:
        """Signal a workflow, and start it first if it does not exist, with the interface of the SDK's client."""
        inputs = _encode([argument])
        signal_inputs = _encode(start_signal_args)
        given = (start_signal, signal_inputs, "")
        await self._call(lambda: self._signal_with_start(workflow_type, id, task_queue, inputs, given))

    async def start(self, workflow_type: str, workflow_id: str, task_queue: str, argument: Any) -> bool:
        """Start a workflow; gives False if it existed already."""
        return await self._call(lambda: self._server.start(workflow_type, workflow_id, task_queue, _encode([argument])))

    async def update_workflow_execution_options(self, _: Any) -> None:
        """Change a run's priority, which has no effect here."""
        await self._call(lambda: None)

    async def describe_task_queue(self, _: Any, **__: Any) -> Any:
        """Always fail, as `Handle.describe` does: nobody learns whether a worker serves the queue."""
        raise RPCError("not told", RPCStatusCode.UNAVAILABLE, b"")

    def get_workflow_handle(self, workflow_id: str, **_: Any) -> "Handle":
        """Give the handle of a workflow."""
        return Handle(self, workflow_id)

    async def signal(self, workflow_id: str, name: str, arguments: Sequence[Any]) -> None:
        """Signal an existing workflow; raises RPCError, also if the signal arrived but the response was lost."""
        if not await self._call(lambda: self._server.signal(workflow_id, name, _encode(arguments))):
            raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")

    async def query(self, workflow_id: str, name: str, arguments: Sequence[Any]) -> Any:
        """Query a workflow; waits while a worker has a task of it."""
        await self._call(lambda: None)
        while True:
            run = self._server.current.get(workflow_id)
            if run is None:
                raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
            if run.task is None and not run.is_task_scheduled and self._server.matching.pick_worker() is not None:
                break
            await asyncio.sleep(0.1)

        payload = find_view(run).query(name, _encode(arguments))
        if payload is None:
            raise WorkflowQueryFailedError("the query failed")

        await asyncio.sleep(self._rng.uniform(0, CALL_SECONDS))
        return DATA_CONVERTER.payload_converter.from_payloads([payload])[0]

    def _signal_with_start(
        self, workflow_type: str, workflow_id: str, queue: str, inputs: list[Payload], given: tuple[str, Any, str]
    ) -> Answer:
        is_new = self._server.start(workflow_type, workflow_id, queue, inputs)
        self._server.signal(workflow_id, *given)
        return Answer(self._server.current[workflow_id].run_id, is_new)

    async def _call(self, act: Callable[[], Any]) -> Any:
        await asyncio.sleep(self._rng.uniform(0, CALL_SECONDS))
        if self._faults.strikes("request lost"):
            raise RPCError("lost on its way", RPCStatusCode.UNAVAILABLE, b"")
        answer = act()
        await asyncio.sleep(self._rng.uniform(0, CALL_SECONDS))
        if self._faults.strikes("answer lost"):
            raise RPCError("the answer was lost on its way", RPCStatusCode.UNAVAILABLE, b"")
        return answer


class Handle:
    """The handle of one workflow."""

    def __init__(self, client: SimulatedClient, workflow_id: str) -> None:
        self._client = client
        self._workflow_id = workflow_id

    async def signal(self, name: str, argument: Any, **_: Any) -> None:
        """Signal the workflow."""
        await self._client.signal(self._workflow_id, name, [argument])

    async def query(self, name: str, argument: Any = None, **_: Any) -> Any:
        """Query the workflow."""
        arguments = [] if argument is None else [argument]
        return await self._client.query(self._workflow_id, name, arguments)

    async def describe(self, **_: Any) -> Any:
        """Always fail: callers that can't learn whether a worker serves the workflow wait for their `patience`."""
        raise RPCError("not told", RPCStatusCode.UNAVAILABLE, b"")


def find_view(run: Run) -> Replica:
    """Give a run's state after its last completed task: the one that a worker has, or a replayed one."""
    if run.view is None:
        run.view = Replica(run)
        run.view.feed(run.history)
    return run.view


def _encode(values: Sequence[Any]) -> list[Payload]:
    return list(DATA_CONVERTER.payload_converter.to_payloads(values))
