"""Stored packs: what the history of a pack's present run says of its messages, read from the server, not from a worker.

A run's first event holds the whole state, later ones the chunks that came since, and the results of batches. Those of
lane `short` are applied as the pack itself does it when it replays. After anything else the stored state is that from
before it, and only the pack knows more.

It is there because asking takes a worker: `dormice list` of 200,000 messages beside a worker that is never idle took 47
to 87 seconds by queries alone, and takes 16 to 17 so, on one machine (bench/results/README.md).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, cast

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError

from shared.messages.message import ENDS
from shared.packs.counts import PackCounts, count_entries, read_counts
from shared.packs.entry import DUE, EARLY, ID, OTHERS, PAYLOAD, Entry, is_held, is_parked, to_state
from shared.packs.reading import read_chunk
from shared.temporal.connect import CALL_TIMEOUT, is_missing
from workflows.description import PAGE_MAX, describe_listed, select_listed
from workflows.guards.sealed_signals import SEALED
from workflows.packs.state import PackState

_Events = Sequence[HistoryEvent]

_UNMOVED = frozenset(
    {
        *(getattr(EventType, f"EVENT_TYPE_WORKFLOW_TASK_{what}") for what in ("SCHEDULED", "STARTED", "COMPLETED")),
        *(getattr(EventType, f"EVENT_TYPE_WORKFLOW_TASK_{what}") for what in ("TIMED_OUT", "FAILED")),
        *(getattr(EventType, f"EVENT_TYPE_TIMER_{what}") for what in ("STARTED", "FIRED", "CANCELED")),
        EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES,
        EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,  # a pack ignores it
    }
)
"""Events that change no message."""

_BATCH_UNDER_WAY = frozenset(
    getattr(EventType, f"EVENT_TYPE_ACTIVITY_TASK_{what}") for what in ("SCHEDULED", "STARTED", "FAILED", "TIMED_OUT")
)
"""Events that end no message; what a lost batch makes of its messages only the pack knows."""

_ENDS = frozenset(
    getattr(EventType, f"EVENT_TYPE_WORKFLOW_EXECUTION_{what}")
    for what in ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELED", "TERMINATED")
)

_ENDING_NONE = frozenset({"run_now", "reschedule", "reprioritize", "pause", "resume", "pull_forward", "revise"})
"""Signals after which exactly the same messages are alive."""


@dataclass(slots=True)
class StoredPack:
    """A pack as its history shows it; not open means that there is none, or that it was ended from outside."""

    as_of: float = 0.0
    """When the run began, in seconds since the epoch."""
    state: PackState | None = None
    is_open: bool = True
    is_current: bool = True
    """The state is what the pack itself would answer."""
    knows_ids: bool = True
    """The state has exactly those messages, alive and finished, that the pack itself has."""

    def list_known(self) -> list[tuple[str, str]]:
        """Give (id, state) of all messages, alive and finished."""
        if self.state is None:
            return []
        alive = self.state.entries.read()
        known = [(e[ID], "active" if not is_held(e) else "parked" if is_parked(e) else "paused") for e in alive]
        known += [(message_id, "active") for message_id in self.state.in_flight.messages]
        return known + [(message.id, message.ended) for message in self.state.messages.finished()]

    def page(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the messages with which the pack would answer the query `page`."""
        after = request.get("after", "")
        maximum = min(request.get("limit", PAGE_MAX), PAGE_MAX)
        return list(islice((message for message in self.list(request) if message["id"] > after), maximum))

    def list(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give all messages that a request to the query `page` selects, as the pack would, by id."""
        if self.state is None:
            return []
        if request.get("state") in ENDS:
            return describe_listed(select_listed(self.state.messages.finished(), request), request)

        entries = self.state.entries.read()
        kind = self.state.config.kind
        lane = self.state.config.lane
        others = (to_state(entry, kind, lane) for entry in entries if len(entry) > OTHERS)
        found = [*_list_ordinary(entries, lane, request), *describe_listed(select_listed(others, request), request)]
        return sorted(found, key=itemgetter("id"))

    def count(self) -> PackCounts | None:
        """Count the messages as of `as_of`, and those that came since; None if nothing can be read."""
        if self.state is None:
            return None
        return read_counts(count_entries(self.state.entries.read(), (), self.state.config.lane, self.as_of))


def _list_ordinary(entries: Iterable[Entry], lane: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the messages that nothing special is known of, by far the most, without a state of each."""
    if request.get("state") not in (None, "active") or request.get("lane") not in (None, lane):
        return

    before = request.get("due_before") or math.inf
    has_payloads = request.get("has_payloads")

    for entry in entries:
        if len(entry) > OTHERS or (due := entry[DUE] / 1000) >= before:
            continue

        message = {
            "id": entry[ID],
            "lane": lane,
            "due_at": due,
            "earliest_at": (entry[DUE] - entry[EARLY]) / 1000,
            "parked_reason": "",
            "parked_at": 0.0,
            "state": "active",
        }
        yield message | {"payload": entry[PAYLOAD]} if has_payloads else message


GONE = StoredPack(is_open=False)
UNREADABLE = StoredPack(is_current=False, knows_ids=False)


async def read_stored(client: Client, name: str, *, ends_when_stale: bool = False) -> StoredPack:
    """Read a pack out of the history of its present run. Raises RPCError.

    With `ends_when_stale`, no further than to what makes the state differ from that of the pack itself.
    """
    while True:
        try:
            events = await _fetch(client, name)
        except RPCError as exc:
            if is_missing(exc):
                return GONE
            raise

        last = events[-1].event_type
        if last == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            continue  # the next run has begun, and is what the next answer shows
        if last in _ENDS:
            return GONE
        return await read_run(events, client.data_converter, ends_when_stale=ends_when_stale)


async def read_run(events: _Events, converter: DataConverter, *, ends_when_stale: bool = False) -> StoredPack:
    """Read a pack out of the history of a run that goes on, as `read_stored` does it with its present run."""
    first = events[0]
    try:
        wire = await _decode(converter, first.workflow_execution_started_event_attributes.input.payloads)
        state = PackState(wire)
    except (TypeError, KeyError):  # it is encrypted, or of a later version
        return UNREADABLE

    # what is sealed, or on its way to another pack, is in neither, and what was asked of a running message is not
    # decided yet
    is_whole = not (state.forwarding or wire.get(SEALED))
    knows_ids = is_whole and all(running.state is None for running in state.in_flight.messages.values())
    pack = StoredPack(_to_epoch(first), state, is_current=is_whole and not state.in_flight, knows_ids=knows_ids)
    reader = _Reader(converter, pack, state)

    for event in events[1:]:
        await reader.apply(event)
        if ends_when_stale and not pack.is_current:
            pack.knows_ids = False
            break

    return pack


async def _fetch(client: Client, name: str) -> _Events:
    execution = WorkflowExecution(workflow_id=name)
    request = GetWorkflowExecutionHistoryRequest(namespace=client.namespace, execution=execution)
    fetch = client.workflow_service.get_workflow_execution_history
    events: list[HistoryEvent] = []

    while True:
        answer = await fetch(request, retry=True, timeout=CALL_TIMEOUT)
        events += answer.history.events
        if not answer.next_page_token:
            return events
        request.next_page_token = answer.next_page_token


class _Reader:
    """Applies the events of a run to a pack, and notes what it can't be read to know any more."""

    def __init__(self, converter: DataConverter, pack: StoredPack, state: PackState) -> None:
        self._converter = converter
        self._pack = pack
        self._state = state

    async def apply(self, event: HistoryEvent) -> None:
        """Apply an event, the one after the last."""
        is_current, knows_ids = await self._apply(event)
        self._pack.is_current &= is_current
        self._pack.knows_ids &= knows_ids

    async def _apply(self, event: HistoryEvent) -> tuple[bool, bool]:
        """Apply an event; return whether the state is still current, and whether its ids still are."""
        if event.event_type in _UNMOVED:
            return True, True
        if event.event_type in _BATCH_UNDER_WAY:
            return False, True

        match event.WhichOneof("attributes"):
            case "workflow_execution_signaled_event_attributes":
                return await self._apply_signal(event)
            case "marker_recorded_event_attributes":
                return False, False  # of a signal that the pack holds until a worker has its key
            case "activity_task_completed_event_attributes":
                answer = await self._decode(event.activity_task_completed_event_attributes.result.payloads)
                return False, not _ends_any(answer)
            case _:
                return False, False

    async def _apply_signal(self, event: HistoryEvent) -> tuple[bool, bool]:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name in _ENDING_NONE:
            return False, True

        given = await self._decode(signal.input.payloads)
        if signal.signal_name != "admit":
            return False, False

        try:
            chunk = read_chunk([given])
        except ValueError:
            return True, True  # the pack has ignored it too

        state = self._state
        revises = chunk.get("revises")
        # a record may revise or stop what is there; and how much room a batch has left, only the pack knows
        is_plain = self._pack.is_current and not (revises and any(state.messages.find(e[ID]) for e in chunk["entries"]))
        state.admit(chunk, _to_epoch(event))
        is_plain = is_plain and not state.forwarding

        return is_plain, is_plain

    async def _decode(self, payloads: Sequence[Payload]) -> Any:
        return await _decode(self._converter, payloads)


async def _decode(converter: DataConverter, payloads: Sequence[Payload]) -> Any:
    values = await converter.decode(list(payloads))
    return values[0] if len(values) == 1 else None


def _to_epoch(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9


def _ends_any(answer: Any) -> bool:
    """Return whether the results of a batch end a message; what can't be read may end some."""
    results = cast("dict[str, Any]", answer).get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        return True
    return any(isinstance(result, dict) and "done" in result.values() for result in cast("list[Any]", results))
