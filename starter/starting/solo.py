"""Solo starts: starts messages that have workflows of their own, and applies deliveries to them."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType, WorkflowExecutionStatus
from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    SignalWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from shared.errors import InvalidEnvelope
from shared.messages.decision import is_key_reused, is_repeated, merge_sources
from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE
from shared.messages.placement import workflow_id
from shared.messages.signal_reading import read_signal
from shared.messages.signals import SIGNAL_NAMES, Revise, Stop
from shared.settings import Settings
from shared.temporal.connect import CALL_TIMEOUT, is_missing
from starter.starting.calls import RetryingCaller
from starter.starting.delivery import Delivery
from starter.starting.queries import query_or_none
from starter.starting.receipts import KEY_REUSED, KEY_UNCHECKED, Receipt, StartOutcome, Tag, to_refusal
from starter.starting.start_request import (
    NO_SOURCES,
    build_start_request,
    find_sources,
    first_state,
    make_request_id,
)

SILENT_SECONDS = 20.0
"""How long no message is asked after one did not answer: probably no worker serves any."""

RECORD_SIGNALS = {SIGNAL_NAMES[kind]: kind for kind in (Revise, Stop)}
"""The signals that a record sends to a message that is alive, by name."""


class SoloStarter:
    """Starts messages with one call each, at the caller's rate."""

    def __init__(self, client: Client, settings: Settings, caller: RetryingCaller) -> None:
        self._client = client
        self._settings = settings
        self._caller = caller
        self._silent_until = 0.0

    async def start(
        self,
        envelope: Envelope,
        tag: Tag,
        *,
        session: str,
        restarts_finished: bool,
    ) -> Receipt[Tag]:
        """Start a message and give its receipt; within a session a retry counts as the same start.

        So does one with the same idempotency key, for as long as the message remembers that; with another body it is
        rejected.
        """
        sources = find_sources(envelope)
        may_restart = restarts_finished and not sources
        receipt = await self._start(envelope, tag, session=session, restarts_finished=may_restart, sources=sources)
        if receipt.outcome is not StartOutcome.ALREADY_RUNNING or not sources:
            return receipt

        ((source, fingerprint),) = sources.items()
        known, attempts = await self._caller.call(lambda: self._read_sources(receipt.workflow_id))
        if isinstance(known, RPCError):
            if not is_missing(known):
                return to_refusal(known, tag, receipt.workflow_id, attempts)
            known = NO_SOURCES

        if is_key_reused(known, source, fingerprint):
            return receipt._replace(outcome=StartOutcome.REJECTED, reason=KEY_REUSED)
        if source in known:
            return receipt._replace(outcome=StartOutcome.STARTED)
        if not restarts_finished:
            return receipt
        merged = merge_sources(known, sources)
        return await self._start(envelope, tag, session=session, restarts_finished=True, sources=merged)

    async def _start(
        self,
        envelope: Envelope,
        tag: Tag,
        *,
        session: str,
        restarts_finished: bool,
        sources: Mapping[str, int],
        trace: Mapping[str, str] = NO_TRACE,
    ) -> Receipt[Tag]:
        name = workflow_id(envelope.kind, envelope.id)
        try:
            state = first_state(envelope, time.time(), sources, trace)
        except InvalidEnvelope as exc:
            return Receipt(tag, name, StartOutcome.REJECTED, reason=str(exc), attempts=0)

        given = (self._client, self._settings, state, make_request_id(envelope, session))
        request = await build_start_request(*given, restarts_finished=restarts_finished)
        send = self._client.workflow_service.start_workflow_execution

        answer, attempts = await self._caller.call_service(send, request)
        if not isinstance(answer, RPCError):
            return Receipt(tag, name, StartOutcome.STARTED, answer.run_id, attempts=attempts)
        if answer.status is RPCStatusCode.ALREADY_EXISTS:
            return Receipt(tag, name, StartOutcome.ALREADY_RUNNING, _run_id_in(answer), attempts=attempts)
        return to_refusal(answer, tag, name, attempts)

    async def deliver(self, delivery: Delivery, tag: Tag) -> Receipt[Tag]:
        """Start, revise, stop or restart a message, whichever its state allows; doing it again changes nothing."""
        name = workflow_id(delivery.kind, delivery.id)
        # a newer record with the same idempotency key revises the message: it is no retry of the older record
        envelope = delivery.envelope
        if envelope is not None and envelope.idempotency_key:
            envelope = envelope.model_copy(update={"idempotency_key": ""})

        finished: Mapping[str, int] | RPCError | None = None
        while True:
            if envelope is not None:
                started = await self._start(
                    envelope,
                    tag,
                    session=f"{delivery.source}:{delivery.offset}",
                    restarts_finished=finished is not None,
                    sources=merge_sources(finished or {}, delivery.sources),
                    trace=delivery.trace,
                )
                if started.outcome is not StartOutcome.ALREADY_RUNNING:
                    return started

            signalled = await self._signal(delivery, tag)
            if signalled is not None:
                return await self._compare(delivery, signalled)
            if envelope is None:
                return Receipt(tag, name, StartOutcome.IGNORED)

            finished, attempts = await self._caller.call(lambda: self._read_sources(name))
            if isinstance(finished, RPCError):
                if not is_missing(finished):
                    return to_refusal(finished, tag, name, attempts)
                finished = {}

            if (repeated := _find_repetition(delivery, finished)) is not None:
                outcome, reason = repeated
                return Receipt(tag, name, outcome, reason=reason)

    async def _signal(self, delivery: Delivery, tag: Tag) -> Receipt[Tag] | None:
        name = workflow_id(delivery.kind, delivery.id)
        signal = delivery.to_signal()
        request = SignalWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=name),
            signal_name=SIGNAL_NAMES[type(signal)],
            identity=self._client.identity,
            request_id=uuid.uuid4().hex,
        )
        request.input.payloads.extend(await self._client.data_converter.encode([signal]))
        send = self._client.workflow_service.signal_workflow_execution

        answer, attempts = await self._caller.call_service(send, request)
        if not isinstance(answer, RPCError):
            outcome = StartOutcome.STOPPED if delivery.envelope is None else StartOutcome.REVISED
            return Receipt(tag, name, outcome, attempts=attempts)

        return None if is_missing(answer) else to_refusal(answer, tag, name, attempts)

    async def _compare(self, delivery: Delivery, receipt: Receipt[Tag]) -> Receipt[Tag]:
        """Give the receipt of a revision that was sent, once the message has told that its key was not reused."""
        if receipt.outcome is not StartOutcome.REVISED or not delivery.is_keyed:
            return receipt
        if time.monotonic() < self._silent_until:
            return receipt._replace(reason=KEY_UNCHECKED)

        status = await query_or_none(self._client.get_workflow_handle(receipt.workflow_id), "status")
        if status is None:
            self._silent_until = time.monotonic() + SILENT_SECONDS
            return receipt._replace(reason=KEY_UNCHECKED)
        if is_key_reused(status["sources"], delivery.source, delivery.offset):
            return receipt._replace(outcome=StartOutcome.REJECTED, reason=KEY_REUSED)
        return receipt

    async def _read_sources(self, name: str) -> Mapping[str, int]:
        """Read the newest offset of each source whose records started or steered a message.

        All of a finished one; of any other, those that it had when its last run began, and what that was sent since.
        """
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace, execution=WorkflowExecution(workflow_id=name)
        )
        if run_id := await self._find_completed(name):
            request.execution.run_id = run_id
            request.history_event_filter_type = HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT
            service = self._client.workflow_service
            last = (await service.get_workflow_execution_history(request, retry=False, timeout=CALL_TIMEOUT)).history
            result = last.events[-1].workflow_execution_completed_event_attributes.result
            return await self._read_state_sources(result.payloads)

        # alive, or ended by a person, so there is no result: what its run began with and was sent is in its history
        return await self._read_history_sources(request)

    async def _find_completed(self, name: str) -> str:
        """Give the last run of a message if it has completed."""
        # not by the close event: for a workflow that runs, the server keeps that question for as long as the call lasts
        request = DescribeWorkflowExecutionRequest(
            namespace=self._client.namespace, execution=WorkflowExecution(workflow_id=name)
        )
        describe = self._client.workflow_service.describe_workflow_execution
        found = (await describe(request, retry=False, timeout=CALL_TIMEOUT)).workflow_execution_info
        is_completed = found.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_COMPLETED
        return found.execution.run_id if is_completed else ""

    async def _read_history_sources(self, request: GetWorkflowExecutionHistoryRequest) -> Mapping[str, int]:
        """Read what a run began with, and each signal that a record sent to it."""
        service = self._client.workflow_service
        sources = NO_SOURCES
        while True:
            page = await service.get_workflow_execution_history(request, retry=False, timeout=CALL_TIMEOUT)
            for event in page.history.events:
                sources = merge_sources(sources, _keep_newer(sources, await self._read_event_sources(event)))

            if not page.next_page_token:
                return sources
            request.next_page_token = page.next_page_token

    async def _read_event_sources(self, event: HistoryEvent) -> Mapping[str, int]:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            return await self._read_state_sources(event.workflow_execution_started_event_attributes.input.payloads)
        if event.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            return NO_SOURCES

        signalled = event.workflow_execution_signaled_event_attributes
        kind = RECORD_SIGNALS.get(signalled.signal_name)
        if kind is None:
            return NO_SOURCES
        try:
            signal = read_signal(kind, await self._client.data_converter.decode(signalled.input.payloads))
        except ValueError:  # the message has ignored it too
            return NO_SOURCES
        return {signal.source: signal.offset} if signal.source else NO_SOURCES

    async def _read_state_sources(self, payloads: Sequence[Payload]) -> Mapping[str, int]:
        content: list[dict[str, Any]] = await self._client.data_converter.decode(payloads, [dict[str, Any]])
        return content[0].get("sources", {}) if content else NO_SOURCES


def _keep_newer(known: Mapping[str, int], found: Mapping[str, int]) -> dict[str, int]:
    return {source: offset for source, offset in found.items() if not is_repeated(known, source, offset)}


def _find_repetition(delivery: Delivery, known: Mapping[str, int]) -> tuple[StartOutcome, str] | None:
    """Give outcome and reason of a delivery that a finished message has seen; None for one that is new to it."""
    if is_key_reused(known, delivery.source, delivery.offset):
        return StartOutcome.REJECTED, KEY_REUSED
    return (StartOutcome.IGNORED, "") if is_repeated(known, delivery.source, delivery.offset) else None


def _run_id_in(exc: RPCError) -> str:
    details = WorkflowExecutionAlreadyStartedFailure()
    return next((details.run_id for detail in exc.grpc_status.details if detail.Unpack(details)), "")
