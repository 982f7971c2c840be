"""Start requests: turns an envelope into the one request that starts its workflow."""

import json
import math
import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Priority, WorkflowType
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import SearchAttributePair

from shared.errors import InvalidEnvelope
from shared.lanes import task_queue
from shared.messages.decision import Spread, find_offset
from shared.messages.envelope import Envelope
from shared.messages.message import NO_TRACE, PAYLOAD_MAX, SERIAL, Decision, MessageState
from shared.messages.placement import MESSAGE_WORKFLOW, workflow_id
from shared.packs.entry import Entry
from shared.settings import Settings
from shared.temporal.search_attributes import attributes_at_start

SUMMARY_MAX = 200  # the server takes 400 bytes
NO_SOURCES: Mapping[str, int] = MappingProxyType({})
USUAL_PRIORITY = 3  # the middle of the server's five
REQUEST_NAMESPACE = uuid.UUID("6f4bd9a2-5d1e-4c57-9d20-0b8f8f4e7a11")


def first_state(
    envelope: Envelope,
    now: float,
    sources: Mapping[str, int] = NO_SOURCES,
    trace: Mapping[str, str] = NO_TRACE,
    spread: Spread | None = None,
) -> MessageState:
    """Make the first state of a message; its first run is spread within the sender's tolerance like all others.

    A scheduled message is never pulled forward to before `scheduled_at`: that is its earliest time.
    """
    if envelope.lane is None:
        raise InvalidEnvelope("lane", "is not resolved; pass envelopes through parse_envelope first")
    due, earliest, latest, why = _find_moments(envelope, now, spread)
    return MessageState(
        kind=envelope.kind,
        id=envelope.id,
        lane=envelope.lane,
        due_at=due / 1000,
        earliest_at=earliest / 1000,
        latest_at=latest / 1000,
        payload=envelope.payload,
        priority=envelope.priority,
        tenant=envelope.tenant,
        correlation_id=envelope.correlation_id,
        sources=sources,
        trace=trace,
        decisions=(Decision(round(now * 1000) / 1000, 0, "started", due / 1000, why),),
    )


def first_entry(
    envelope: Envelope,
    now: float,
    pack_lane: str,
    *,
    sources: Mapping[str, int] = NO_SOURCES,
    trace: Mapping[str, str] = NO_TRACE,
    spread: Spread | None = None,
) -> Entry:
    """Make the entry of a message's first state: the same as `to_entry` of `first_state`, in a third of the time."""
    due, earliest, latest, why = _find_moments(envelope, now, spread)
    started = [due - round(now * 1000), 0, "started", 0, why]
    entry: Entry = [envelope.id, due, due - earliest, max(latest - due, 0), 0, envelope.payload, [started]]
    others: dict[str, Any] = {}
    if envelope.priority != USUAL_PRIORITY:
        others["priority"] = envelope.priority
    if envelope.tenant:
        others["tenant"] = envelope.tenant
    if envelope.correlation_id:
        others["correlation_id"] = envelope.correlation_id
    if sources:
        others["sources"] = sources
    if trace:
        others["trace"] = trace
    if envelope.lane != pack_lane:
        others["lane"] = envelope.lane
    if others:
        entry.append(others)
    return entry


def _find_moments(envelope: Envelope, now: float, spread: Spread | None) -> tuple[int, int, int, str]:
    """Return due, earliest and latest time in milliseconds (latest is 0 without tolerance), and the reason."""
    scheduled = now if envelope.scheduled_at is None else envelope.scheduled_at.timestamp()
    base, tolerance = max(scheduled, now), envelope.tolerance_seconds
    why = "due at once" if scheduled <= now else "scheduled by its sender"
    earliest = _to_milliseconds(base, now)
    if not tolerance:
        return earliest, earliest, 0, why
    offset = find_offset(workflow_id(envelope.kind, envelope.id), tolerance, spread)
    return _to_milliseconds(base + offset, now), earliest, math.floor((base + tolerance) * 1000), why


def request_id(envelope: Envelope, session: str) -> str:
    """Give the request id of one start, the same for each retry.

    With an idempotency key of the sender it is the same in every session too: the server then answers a second start
    with the run that it already made, also when the message has finished meanwhile.
    """
    return str(uuid.uuid5(REQUEST_NAMESPACE, f"{envelope.idempotency_key or session}|{envelope.kind}:{envelope.id}"))


async def build_start_request(
    client: Client,
    settings: Settings,
    envelope: Envelope,
    *,
    now: float,
    session: str,
    restarts_finished: bool,
    sources: Mapping[str, int] = NO_SOURCES,
    trace: Mapping[str, str] = NO_TRACE,
) -> StartWorkflowExecutionRequest:
    """Build the request; a message that is alive is never started a second time.

    With `restarts_finished` a message that has finished is started anew, otherwise the server refuses it for as
    long as it remembers the finished run (the namespace's retention).
    """
    state = first_state(envelope, now, sources, trace)
    request = StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=state.workflow_id,
        workflow_type=WorkflowType(name=MESSAGE_WORKFLOW),
        task_queue=TaskQueue(name=task_queue(settings.task_queue_prefix, state.lane)),
        identity=client.identity,
        request_id=request_id(envelope, session),
        workflow_task_timeout=Duration(seconds=round(settings.workflow_task_timeout.total_seconds())),
        workflow_id_reuse_policy=(
            WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
            if restarts_finished
            else WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
        ),
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        priority=_priority(envelope),
    )
    first = state.dump() | {PAYLOAD_MAX: settings.payload_max_bytes, SERIAL: 1}
    wire, summary = await client.data_converter.encode([first, f"{envelope.kind} {envelope.id}"[:SUMMARY_MAX]])
    request.input.payloads.append(wire)
    request.user_metadata.summary.CopyFrom(summary)
    index_request(request, attributes_at_start(state, now, settings.index_after.total_seconds()))
    return request


def _priority(envelope: Envelope) -> Priority | None:
    """Give None for what is the server's default, which makes each start request a little smaller."""
    is_usual = envelope.priority == USUAL_PRIORITY and not envelope.tenant
    return None if is_usual else Priority(priority_key=envelope.priority, fairness_key=envelope.tenant)


def index_request(
    request: StartWorkflowExecutionRequest | SignalWithStartWorkflowExecutionRequest,
    pairs: Iterable[SearchAttributePair[Any]],
) -> None:
    """Write search attributes as the SDK's own encoder does, at a fifth of its time."""
    for pair in pairs:
        is_text = isinstance(pair.value, str)  # all others are datetimes
        payload = request.search_attributes.indexed_fields[pair.key.name]
        payload.metadata["type"] = b"Keyword" if is_text else b"Datetime"
        payload.metadata["encoding"] = b"json/plain"
        payload.data = json.dumps(pair.value if is_text else pair.value.isoformat()).encode()


def _to_milliseconds(moment: float, now: float) -> int:
    # a future time is rounded up, because nothing may run early; a time that is due is rounded down, because even a
    # fraction of a millisecond ahead would cost a timer
    return (math.ceil if moment > now else math.floor)(moment * 1000)
