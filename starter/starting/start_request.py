"""Start requests: turns an envelope into the request that starts its workflow, or into an entry for its pack."""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import Priority, WorkflowType
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import SignalWithStartWorkflowExecutionRequest, StartWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import RawValue, SearchAttributePair

from shared.errors import InvalidEnvelope
from shared.lanes import task_queue
from shared.messages.decision import find_offset
from shared.messages.envelope import Envelope
from shared.messages.json_value import encode_json
from shared.messages.message import NO_TRACE, PAYLOAD_MAX, MessageState
from shared.messages.placement import MESSAGE_WORKFLOW, PACK_WORKFLOW, Layout, PackSpread, pack_workflow_id, workflow_id
from shared.messages.signals import name_request
from shared.messages.timespan import ceil_ms, floor_ms
from shared.packs.counts import COUNTS_MEMO
from shared.packs.entry import Entry, to_heading, to_state
from shared.settings import Settings
from shared.temporal.search_attributes import attributes_at_start, pack_attributes_at_start

SUMMARY_MAX = 200  # the server takes 400 bytes
NO_SOURCES: Mapping[str, int] = MappingProxyType({})
DEFAULT_PRIORITY = 3  # the middle of the server's five
REQUEST_NAMESPACE = uuid.UUID("6f4bd9a2-5d1e-4c57-9d20-0b8f8f4e7a11")


def find_sources(envelope: Envelope) -> Mapping[str, int]:
    """Give what a message that is started remembers of its request; nothing without an idempotency key."""
    if not envelope.idempotency_key:
        return NO_SOURCES
    return {name_request(envelope.idempotency_key): envelope.fingerprint}


def first_state(
    envelope: Envelope, now: float, sources: Mapping[str, int] = NO_SOURCES, trace: Mapping[str, str] = NO_TRACE
) -> MessageState:
    """Make the first state of a message that gets a workflow of its own; raises InvalidEnvelope without a lane."""
    if envelope.lane is None:
        raise InvalidEnvelope("lane", "is not resolved; pass envelopes through parse_envelope first")
    entry = first_entry(envelope, now, envelope.lane, sources=sources, trace=trace)
    return to_state(entry, envelope.kind, envelope.lane)


def first_entry(
    envelope: Envelope,
    now: float,
    pack_lane: str,
    *,
    sources: Mapping[str, int] = NO_SOURCES,
    trace: Mapping[str, str] = NO_TRACE,
    spread: PackSpread | None = None,
) -> Entry:
    """Make the entry of a message for a pack of a lane; its first run is spread within the sender's tolerance.

    A scheduled message is never pulled forward to before `scheduled_at`: that is its earliest time.
    """
    scheduled = None if envelope.scheduled_at is None else envelope.scheduled_at.timestamp()
    tolerance = envelope.tolerance_seconds
    offset = 0.0
    expires_at = 0.0
    if envelope.expires_at is not None:
        # to the millisecond, as the due time that it bounds; above 0, which stands for no expiry
        expires_at = max(ceil_ms(envelope.expires_at.timestamp()), 1) / 1000
    if expires_at and tolerance:
        tolerance = min(tolerance, max(expires_at - max(scheduled or now, now), 0.0))
    if tolerance:
        offset = spread(tolerance) if spread else find_offset(workflow_id(envelope.kind, envelope.id), tolerance, None)

    due, early, late, why = _find_moments(scheduled, tolerance, offset, now)
    if spread:
        late = spread.limit(late)

    started = [due - round(now * 1000), 0, "started", 0, why]
    entry: Entry = [envelope.id, due, early, late, 0, envelope.payload, [started]]
    lane = "" if envelope.lane == pack_lane else envelope.lane
    others = find_others(envelope.priority, envelope.tenant, envelope.correlation_id, lane, expires_at)
    if sources:
        others["sources"] = sources
    if trace:
        others["trace"] = trace
    if others:
        entry.append(others)
    return entry


def find_others(
    priority: int, tenant: str, correlation_id: str, lane: str | None, expires_at: float = 0.0
) -> dict[str, Any]:
    """Give the fields of an entry that differ from their defaults, by name; `lane` is empty if it is the pack's."""
    if priority == DEFAULT_PRIORITY and not (tenant or correlation_id or lane or expires_at):
        return {}  # nearly always
    given = {"tenant": tenant, "correlation_id": correlation_id, "lane": lane, "expires_at": expires_at}
    others: dict[str, Any] = {} if priority == DEFAULT_PRIORITY else {"priority": priority}
    return others | {name: value for name, value in given.items() if value}


class EntryColumns(NamedTuple):
    """Checked messages for one pack as columns, a sequence for each field."""

    ids: Sequence[str]
    scheduled_at: Sequence[int | None]
    """In microseconds since the epoch; None is now."""
    tolerances: Sequence[float]
    payloads: Sequence[str]
    """JSON."""
    others: Sequence[Mapping[str, Any]]
    """What `find_others` gives."""


def encode_first_entries_fast(columns: EntryColumns, now: float, spread: PackSpread) -> list[str]:
    """Give the entries of new messages as JSON: those that `first_entry` makes, without an object for each.

    A property test of `spark.tasks.chunks` holds both equal.
    """
    started_at = round(now * 1000)
    entries = list[str]()

    for message_id, scheduled, tolerance, payload, others in zip(*columns, strict=True):
        moment = None if scheduled is None else scheduled / 1e6
        offset = spread(tolerance) if tolerance else 0.0
        due, early, late, why = _find_moments(moment, tolerance, offset, now)
        named = encode_json(message_id).decode()
        more = f",{encode_json(others).decode()}" if others else ""
        started = f'[[{due - started_at},0,"started",0,"{why}"]]'
        entries.append(f"[{named},{due},{early},{spread.limit(late)},0,{payload},{started}{more}]")

    return entries


def _find_moments(scheduled: float | None, tolerance: float, offset: float, now: float) -> tuple[int, int, int, str]:
    """Return when a message is due, how much earlier and later it may run, all in milliseconds, and the reason."""
    if scheduled is None or scheduled <= now:
        base = now
        earliest = floor_ms(now)
        why = "due at once"
    else:
        base = scheduled
        earliest = ceil_ms(scheduled)
        why = "scheduled by its sender"

    if not tolerance:
        return earliest, 0, 0, why

    due = _to_milliseconds(base + offset, now)
    return due, due - earliest, max(floor_ms(base + tolerance) - due, 0), why


def make_request_id(envelope: Envelope, session: str) -> str:
    """Give the request id of one start, the same for each retry.

    With the sender's idempotency key, and the same body, it is the same in every session: the server then answers a
    second start with the run that it already made.
    """
    if envelope.idempotency_key:
        session = f"{envelope.idempotency_key}|{envelope.fingerprint}"
    return str(uuid.uuid5(REQUEST_NAMESPACE, f"{session}|{envelope.kind}:{envelope.id}"))


async def build_start_request(
    client: Client, settings: Settings, state: MessageState, request_id: str, *, restarts_finished: bool
) -> StartWorkflowExecutionRequest:
    """Build the request, which the server refuses for a message that is alive.

    Unless `restarts_finished`, also for a finished one, as long as it remembers the run (the namespace's retention).
    """
    reuse = WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
    if restarts_finished:
        reuse = WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE

    request = StartWorkflowExecutionRequest(
        **_start_fields(client, settings, MESSAGE_WORKFLOW, state.workflow_id, state.lane),
        request_id=request_id,
        workflow_id_reuse_policy=reuse,
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
    )
    if state.priority != DEFAULT_PRIORITY or state.tenant:  # else the server's default; the request is a little smaller
        request.priority.CopyFrom(Priority(priority_key=state.priority, fairness_key=state.tenant))

    first = state.dump() | {PAYLOAD_MAX: settings.payload_max_bytes}
    wire, summary = await client.data_converter.encode([first, f"{state.kind} {state.id}"[:SUMMARY_MAX]])
    request.input.payloads.append(wire)
    request.user_metadata.summary.CopyFrom(summary)
    _index(request, attributes_at_start(state, time.time(), settings.index_after.total_seconds()))

    return request


async def build_pack_request(
    client: Client,
    settings: Settings,
    layout: Layout,
    index: int,
    *,
    signal: str,
    argument: dict[str, Any] | RawValue,
    counts: Mapping[str, Any] | None = None,
) -> SignalWithStartWorkflowExecutionRequest:
    """Build the call that signals a pack, and starts it empty if it does not exist yet, with `counts` in its memo."""
    request = SignalWithStartWorkflowExecutionRequest(
        **_start_fields(client, settings, PACK_WORKFLOW, pack_workflow_id(layout.kind, index), layout.lane),
        request_id=uuid.uuid4().hex,
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        signal_name=signal,
    )
    limit = settings.payload_max_bytes
    empty = to_heading(
        *(layout.kind, layout.lane),
        index=index,
        **layout.sizes,
        payload_max_bytes=limit,
    )
    first, second, *others = await client.data_converter.encode([empty, argument, *([counts] if counts else [])])
    request.input.payloads.append(first)
    request.signal_input.payloads.append(second)

    for payload in others:
        request.memo.fields[COUNTS_MEMO].CopyFrom(payload)

    _index(request, pack_attributes_at_start(layout.kind, layout.lane))
    return request


def _start_fields(client: Client, settings: Settings, workflow_type: str, name: str, lane: str) -> dict[str, Any]:
    return {
        "namespace": client.namespace,
        "workflow_id": name,
        "workflow_type": WorkflowType(name=workflow_type),
        "task_queue": TaskQueue(name=task_queue(settings.task_queue_prefix, lane)),
        "identity": client.identity,
        "workflow_task_timeout": Duration(seconds=round(settings.workflow_task_timeout.total_seconds())),
    }


def _index(
    request: StartWorkflowExecutionRequest | SignalWithStartWorkflowExecutionRequest,
    pairs: Iterable[SearchAttributePair[Any]],
) -> None:
    """Write search attributes as the SDK's own encoder does, at a fifth of its time."""
    for pair in pairs:
        is_text = isinstance(pair.value, str)  # all others are datetimes
        payload = request.search_attributes.indexed_fields[pair.key.name]
        payload.metadata["type"] = b"Keyword" if is_text else b"Datetime"
        payload.metadata["encoding"] = b"json/plain"
        value = pair.value if is_text else pair.value.isoformat()
        payload.data = json.dumps(value).encode()


def _to_milliseconds(moment: float, now: float) -> int:
    # a future time is rounded up, because nothing may run early; a time that is due is rounded down, because even a
    # fraction of a millisecond ahead would cost a timer
    return ceil_ms(moment) if moment > now else floor_ms(moment)
