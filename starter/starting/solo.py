"""The start of one message that has a workflow of its own."""

import time
from collections.abc import Mapping
from typing import TypeVar

from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from shared.errors import InvalidEnvelope
from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE
from shared.messages.placement import workflow_id
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT
from starter.starting.calls.retrying_caller import RetryingCaller
from starter.starting.receipts import Receipt, StartOutcome, to_refusal
from starter.starting.start_request import NO_SOURCES, build_start_request

Tag = TypeVar("Tag")


class SoloStarter:
    """Starts messages with one call each, at the caller's rate."""

    def __init__(self, client: Client, settings: Settings, caller: RetryingCaller) -> None:
        self._client = client
        self._settings = settings
        self._caller = caller

    async def start(
        self,
        envelope: Envelope,
        tag: Tag,
        *,
        session: str,
        restarts_finished: bool,
        sources: Mapping[str, int] = NO_SOURCES,
        trace: Mapping[str, str] = NO_TRACE,
    ) -> Receipt[Tag]:
        """Start a message and give its receipt; within a session a retry counts as the same start."""
        name = workflow_id(envelope.kind, envelope.id)
        try:
            request = await build_start_request(
                self._client,
                self._settings,
                envelope,
                now=time.time(),
                session=session,
                restarts_finished=restarts_finished,
                sources=sources,
                trace=trace,
            )
        except InvalidEnvelope as exc:
            return Receipt(tag, name, StartOutcome.REJECTED, reason=str(exc), attempts=0)
        service = self._client.workflow_service
        # retry=False: the SDK's own retries would hide that the server is at its limit
        called = await self._caller.call(
            lambda: service.start_workflow_execution(request, retry=False, timeout=CALL_TIMEOUT)
        )
        if called.answer is not None:
            return Receipt(tag, name, StartOutcome.STARTED, called.answer.run_id, attempts=called.attempts)
        if called.error is not None and called.error.status is RPCStatusCode.ALREADY_EXISTS:
            run_id = _run_id_in(called.error)
            return Receipt(tag, name, StartOutcome.ALREADY_RUNNING, run_id, attempts=called.attempts)
        return to_refusal(called.error, tag, name, called.attempts)


def _run_id_in(exc: RPCError) -> str:
    details = WorkflowExecutionAlreadyStartedFailure()
    for detail in exc.grpc_status.details:
        if detail.Unpack(details):
            return details.run_id
    return ""
