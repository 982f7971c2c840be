"""The client: what dormice's own code calls of Temporal's, between it and the model of the server; calls may get lost."""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from temporalio.api.common.v1 import Payload
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest
from temporalio.client import WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from chaos.simulation.faults import Faults
from chaos.simulation.replica import Replica
from chaos.simulation.server import Run, Server
from shared.temporal.converter import DATA_CONVERTER

CALL_SECONDS = 0.02


class Answer(NamedTuple):
    """What the server says to a start with a signal."""

    run_id: str
    started: bool


class SimulatedClient:
    """Speaks for one process; `data_converter`, `namespace` and `identity` are what requests are built with."""

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
        """Signal a workflow that begins if it is not there."""
        queue, workflow_type = request.task_queue.name, request.workflow_type.name
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
        """Signal a workflow that begins if it is not there, as the SDK's client does it."""
        inputs, signal_inputs = _encode([argument]), _encode(start_signal_args)
        given = (start_signal, signal_inputs, "")
        await self._call(lambda: self._signal_with_start(workflow_type, id, task_queue, inputs, given))

    async def start(self, workflow_type: str, workflow_id: str, task_queue: str, argument: Any) -> bool:
        """Start a workflow; tells whether it was not there."""
        return await self._call(lambda: self._server.start(workflow_type, workflow_id, task_queue, _encode([argument])))

    async def update_workflow_execution_options(self, _: Any) -> None:
        """Change a run's priority, which means nothing here."""
        await self._call(lambda: None)

    def get_workflow_handle(self, workflow_id: str, **_: Any) -> "Handle":
        """Give what reaches a workflow."""
        return Handle(self, workflow_id)

    async def signal(self, workflow_id: str, name: str, arguments: Sequence[Any]) -> None:
        """Signal a workflow that is there. Raises RPCError, also when the signal was taken and the answer got lost."""
        if not await self._call(lambda: self._server.signal(workflow_id, name, _encode(arguments))):
            raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")

    async def query(self, workflow_id: str, name: str, arguments: Sequence[Any]) -> Any:
        """Ask a workflow; waits while a worker has its task."""
        await self._call(lambda: None)
        while True:
            run = self._server.current.get(workflow_id)
            if run is None:
                raise RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
            if run.task is None and not run.is_task_scheduled and self._server.pick_worker() is not None:
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
    """Reaches one workflow."""

    def __init__(self, client: SimulatedClient, workflow_id: str) -> None:
        self._client = client
        self._workflow_id = workflow_id

    async def signal(self, name: str, argument: Any, **_: Any) -> None:
        """Signal it."""
        await self._client.signal(self._workflow_id, name, [argument])

    async def query(self, name: str, argument: Any = None, **_: Any) -> Any:
        """Ask it."""
        return await self._client.query(self._workflow_id, name, [] if argument is None else [argument])

    async def describe(self, **_: Any) -> Any:
        """Nothing is known of who serves it: who asks goes by patience."""
        raise RPCError("not told", RPCStatusCode.UNAVAILABLE, b"")


def find_view(run: Run) -> Replica:
    """Give a run as it stands after the last task that was completed: as a worker has it, or replayed."""
    if run.view is None:
        run.view = Replica(run)
        run.view.feed(run.history)
    return run.view


def _encode(values: Sequence[Any]) -> list[Payload]:
    return list(DATA_CONVERTER.payload_converter.to_payloads(values))
