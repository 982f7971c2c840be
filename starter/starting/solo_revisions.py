"""Solo revisions: applies deliveries to messages that have workflows of their own."""

import uuid
from typing import Any, TypeVar

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest, SignalWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.service import RPCError

from shared.messages.placement import workflow_id
from shared.messages.signals import SIGNAL_NAMES
from shared.temporal.connect import CALL_TIMEOUT, is_missing
from starter.starting.calls.retrying_caller import RetryingCaller
from starter.starting.delivery import Delivery
from starter.starting.receipts import Receipt, StartOutcome, to_refusal
from starter.starting.solo import SoloStarter

Tag = TypeVar("Tag")


class SoloRevisions:
    """Starts, revises, stops or restarts a message: tries one call after the other until one fits its state."""

    def __init__(self, client: Client, solo: SoloStarter, caller: RetryingCaller) -> None:
        self._client = client
        self._solo = solo
        self._caller = caller

    async def deliver(self, delivery: Delivery, tag: Tag) -> Receipt[Tag]:
        """Apply a delivery and return its receipt; applying it again changes nothing."""
        name = workflow_id(delivery.kind, delivery.id)
        # a newer record with the same idempotency key revises the message: it is no retry of the older record
        envelope = delivery.envelope
        if envelope is not None and envelope.idempotency_key:
            envelope = envelope.model_copy(update={"idempotency_key": ""})
        finished: dict[str, int] | None = None
        while True:
            if envelope is not None:
                started = await self._solo.start(
                    envelope,
                    tag,
                    session=f"{delivery.source}:{delivery.offset}",
                    restarts_finished=finished is not None,
                    sources={**(finished or {}), **delivery.sources},
                    trace=delivery.trace,
                )
                if started.outcome is not StartOutcome.ALREADY_RUNNING:
                    return started
            signalled = await self._signal(delivery, tag)
            if signalled is not None:
                return signalled
            if envelope is None:
                return Receipt(tag, name, StartOutcome.IGNORED)
            found = await self._caller.call(lambda: self._read_sources(name))
            if found.answer is None:
                return to_refusal(found.error, tag, name, found.attempts)
            if found.answer.get(delivery.source, -1) >= delivery.offset:
                return Receipt(tag, name, StartOutcome.IGNORED)
            finished = found.answer

    async def _signal(self, delivery: Delivery, tag: Tag) -> Receipt[Tag] | None:
        """Revise or stop the message; None when it is not alive."""
        name, signal = workflow_id(delivery.kind, delivery.id), delivery.to_signal()
        request = SignalWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=name),
            signal_name=SIGNAL_NAMES[type(signal)],
            identity=self._client.identity,
            request_id=uuid.uuid4().hex,
        )
        request.input.payloads.extend(await self._client.data_converter.encode([signal]))
        service = self._client.workflow_service
        called = await self._caller.call(
            lambda: service.signal_workflow_execution(request, retry=False, timeout=CALL_TIMEOUT)
        )
        if called.answer is not None:
            outcome = StartOutcome.STOPPED if delivery.envelope is None else StartOutcome.REVISED
            return Receipt(tag, name, outcome, attempts=called.attempts)
        if called.error is not None and is_missing(called.error):
            return None
        return to_refusal(called.error, tag, name, called.attempts)

    async def _read_sources(self, name: str) -> dict[str, int]:
        """Read the newest offset of each source whose records started or steered a finished message."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=name),
            history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
        )
        service = self._client.workflow_service
        try:
            last = (await service.get_workflow_execution_history(request, retry=False, timeout=CALL_TIMEOUT)).history
            if last.events and last.events[-1].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                payloads = last.events[-1].workflow_execution_completed_event_attributes.result.payloads
            else:  # ended by a person: only its first state is known
                request.history_event_filter_type = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT
                request.maximum_page_size = 1
                first = await service.get_workflow_execution_history(request, retry=False, timeout=CALL_TIMEOUT)
                payloads = first.history.events[0].workflow_execution_started_event_attributes.input.payloads
        except RPCError as exc:
            if is_missing(exc):
                return {}
            raise
        content: list[dict[str, Any]] = await self._client.data_converter.decode(payloads, [dict[str, Any]])
        return content[0].get("sources", {}) if content else {}
