"""Stored packs: what the history of a pack's present run says of its messages, read from the server, not from a worker.

A run's first event holds the whole state, later ones the chunks that came since, and the results of batches. Which
messages a batch held is known only to workflow code, so after one the stored state is that of the begin of the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, MarkerRecordedEventAttributes
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client
from temporalio.service import RPCError

from activities.calls.batch import REPORT
from activities.server_calls import MARK_SERIAL
from shared.messages.json_value import decode_json
from shared.messages.message import ENDS, MessageState
from shared.packs.counts import PackCounts, count_entries, read_counts
from shared.packs.entry import ID, OTHERS, Entry, is_ended, is_held, is_parked
from shared.packs.reading import read_chunk
from shared.temporal.connect import CALL_TIMEOUT, is_missing
from workflows.description import PAGE_MAX, page_of
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

    begun_at: float = 0.0
    """When the run began, in seconds since the epoch: a batch since then is not in `state`."""
    state: PackState | None = None
    is_open: bool = True
    is_current: bool = True
    """The state is what the pack itself would answer."""
    knows_ids: bool = True
    """The state has exactly those messages, alive and finished, that the pack itself has."""

    def alive(self) -> list[MessageState]:
        """Give the messages that are alive, by id."""
        return [] if self.state is None else list(self.state.alive())

    def list_known(self) -> list[tuple[str, str]]:
        """Give (id, state) of all messages, alive and finished."""
        wire = {} if self.state is None else self.state.dump()
        alive: list[Entry] = wire.get("entries", [])
        ended: list[Entry] = wire.get("ended", [])
        known = [(e[ID], "active" if not is_held(e) else "parked" if is_parked(e) else "paused") for e in alive]
        return known + [(entry[ID], entry[OTHERS]["ended"]) for entry in ended]

    def finished(self) -> list[MessageState]:
        """Give those that finished a while ago, by id."""
        return [] if self.state is None else list(self.state.finished())

    def page(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the messages with which the pack would answer the query `page`."""
        states = self.finished() if request.get("state") in ENDS else self.alive()
        return page_of(states, request)["messages"]

    def list(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Give the messages that a request to the query `page` selects, as the pack would; not by pages."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.page({**request, "after": found[-1]["id"] if found else ""})
            found += page
            if len(page) < PAGE_MAX:
                return found

    def count(self) -> PackCounts | None:
        """Count the messages as of the begin of the run, and those that came since; None if nothing can be read."""
        if self.state is None:
            return None
        entries: list[Entry] = self.state.dump()["entries"]
        return read_counts(count_entries(entries, (), self.state.lane, self.begun_at))


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
        return await _Reader(client).read(events, ends_when_stale=ends_when_stale)


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
    def __init__(self, client: Client) -> None:
        self._converter = client.data_converter

    async def read(self, events: _Events, *, ends_when_stale: bool) -> StoredPack:
        """Apply the events of a run, from its first on."""
        first = events[0]
        try:
            state = PackState(await self._decode(first.workflow_execution_started_event_attributes.input.payloads))
        except (TypeError, KeyError):  # it is encrypted, or of a later version
            return UNREADABLE
        pack = StoredPack(first.event_time.ToNanoseconds() / 1e9, state)
        # what is on its way to another pack is in neither
        pack.is_current = pack.knows_ids = not state.forwarding
        for event in events[1:]:
            is_current, knows_ids = await self._apply(pack, state, event)
            pack.is_current &= is_current
            pack.knows_ids &= knows_ids
            if ends_when_stale and not pack.is_current:
                pack.knows_ids = False
                break
        return pack

    async def _apply(self, pack: StoredPack, state: PackState, event: HistoryEvent) -> tuple[bool, bool]:
        """Apply an event; return whether the state is still current, and whether its ids still are."""
        if event.event_type in _UNMOVED:
            return True, True
        if event.event_type in _BATCH_UNDER_WAY:
            return False, True
        match event.WhichOneof("attributes"):
            case "workflow_execution_signaled_event_attributes":
                return await self._apply_signal(pack, state, event)
            case "marker_recorded_event_attributes":
                return await self._apply_marker(event)
            case "activity_task_completed_event_attributes":
                answer = await self._decode(event.activity_task_completed_event_attributes.result.payloads)
                return False, not _ends_any(answer, "outcomes", _is_done)
            case _:
                return False, False

    async def _apply_signal(self, pack: StoredPack, state: PackState, event: HistoryEvent) -> tuple[bool, bool]:
        signal = event.workflow_execution_signaled_event_attributes
        if signal.signal_name in _ENDING_NONE:
            return False, True
        given = await self._decode(signal.input.payloads)
        if signal.signal_name == REPORT:
            return False, not _ends_any(given, "outcomes", lambda pair: _is_done(pair[-1]))
        if signal.signal_name != "admit":
            return False, False
        try:
            chunk = read_chunk([given])
        except ValueError:
            return True, True  # the pack has ignored it too
        # a record may revise or stop what is there; and how much room a batch has left, only the pack knows
        is_plain = pack.is_current and not (chunk.get("revises") and any(state.find(e[ID]) for e in chunk["entries"]))
        state.admit(chunk, event.event_time.ToNanoseconds() / 1e9)
        is_plain = is_plain and not state.forwarding
        return is_plain, is_plain

    async def _apply_marker(self, event: HistoryEvent) -> tuple[bool, bool]:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name == "core_patch" or _find_activity(marker) == MARK_SERIAL:
            return True, True
        if marker.HasField("failure"):
            return False, True  # a batch was lost
        answer = await self._decode(marker.details["result"].payloads) if "result" in marker.details else None
        return False, not _ends_any(answer, "entries", is_ended)

    async def _decode(self, payloads: Sequence[Payload]) -> Any:
        values = await self._converter.decode(list(payloads))
        return values[0] if len(values) == 1 else None


def _find_activity(marker: MarkerRecordedEventAttributes) -> str:
    """Give the type of the local activity that a marker is about; the core writes this without any codec."""
    if "data" not in marker.details:
        return ""
    (data,) = marker.details["data"].payloads
    return cast("dict[str, Any]", decode_json(data.data)).get("activity_type", "")


def _is_done(outcome: Mapping[str, Any] | None) -> bool:
    return outcome is not None and outcome.get("verdict") == "done"


def _ends_any(answer: Any, name: str, is_end: Callable[[Any], bool]) -> bool:
    """Return whether the results of a batch end a message; what can't be read may end some."""
    found = cast("dict[str, Any]", answer).get(name) if isinstance(answer, dict) else None
    return not isinstance(found, list) or any(is_end(each) for each in cast("list[Any]", found) if each is not None)
