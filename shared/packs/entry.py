"""Pack entries: one message of a pack as a compact JSON array, in a pack's state and on the way to it.

Columns: id, due (milliseconds since the epoch), how much sooner its earliest and how much later its latest moment is
(milliseconds), version, payload, decisions, and, only where one of them is not as usual, the other fields by name.
Decisions are arrays too, their moments and versions counted back from the message's own.
"""

from collections.abc import Mapping
from typing import Any

from shared.messages.json_value import encode_json
from shared.messages.message import (
    DEFAULT_FIELDS,
    DEFAULTS,
    IDLE_DEFAULTS,
    SERIAL,
    Decision,
    MessageState,
    non_default_fields,
)

Entry = list[Any]

ID, DUE, EARLY, LATE, VERSION, PAYLOAD, DECISIONS, OTHERS = range(8)

CHUNK_BYTES_MAX = 200_000
"""Most bytes of entries in one signal: room for a thousand usual ones, and far below what a server warns of (512 KiB)."""

STATE_BYTES_MAX = 400_000
"""Most bytes of a pack's state, for the same reason."""

WIRE_VERSION = 1
"""Of a pack's state."""

SHORTENED_MAX = 200
"""Characters of a reason that a pack keeps which has no room for more."""

_ROUTINE = frozenset({"started", "again", "asked"})
_KNOWN = frozenset(DEFAULT_FIELDS)
_CHANGE_LENGTH = 4


def to_heading(
    kind: str,
    lane: str,
    *,
    index: int,
    packs: int,
    size: int,
    coalesce: float,
    payload_max_bytes: int = 0,
    is_serial: bool = True,
) -> dict[str, Any]:
    """Give the wire form of a pack without messages: what it starts from, and what stands above them later.

    `payload_max_bytes` is what a revision's payload may take, by the settings of starters and workers; 0 = nobody has
    said. `is_serial`: its signals act one by one, as they do in all packs but those that older code started.
    """
    heading = {
        "v": WIRE_VERSION,
        "kind": kind,
        "lane": lane,
        "index": index,
        "packs": packs,
        "size": size,
        "coalesce": coalesce,
    }
    seldom = {"payload_max_bytes": payload_max_bytes, SERIAL: int(is_serial)}
    return heading | {name: value for name, value in seldom.items() if value}


def to_entry(state: MessageState, lane: str) -> Entry:
    """Give the entry of a message that no handler is at work on, in a pack of a lane.

    Of decisions that are a matter of course only the latest is kept: they are what fills a pack.
    """
    due = round(state.due_at * 1000)
    entry: Entry = [
        state.id,
        due,
        due - round(state.earliest_at * 1000),
        max(round(state.latest_at * 1000) - due, 0),
        state.version,
        state.payload,
        [
            [due - round(d.at * 1000), state.version - d.version, d.what, due - round(d.due_at * 1000), d.reason]
            for number, d in enumerate(state.decisions, start=1)
            if number == len(state.decisions) or d.what not in _ROUTINE
        ],
    ]
    others = non_default_fields(state)
    if state.lane != lane:
        others["lane"] = state.lane
    if others:
        entry.append(others)
    return entry


def to_state(entry: Entry, kind: str, lane: str) -> MessageState:
    """Give the message of an entry; fields that a newer version may have added are left out."""
    due, version, late = entry[DUE], entry[VERSION], entry[LATE]
    decisions = tuple(
        [
            Decision((due - at) / 1000, version - back, what, (due - then) / 1000, reason)
            for at, back, what, then, reason, *_ in entry[DECISIONS]
        ]
    )
    latest = (due + late) / 1000 if late else 0.0
    # by position, which every cycle of every packed message is quicker for
    first = (kind, entry[ID], lane, due / 1000, (due - entry[EARLY]) / 1000, latest, entry[PAYLOAD], version)
    state = MessageState._make((*first, *DEFAULTS, decisions, *IDLE_DEFAULTS))
    if len(entry) <= OTHERS:
        return state
    return state._replace(**{n: value for n, value in entry[OTHERS].items() if n in _KNOWN or n == "lane"})


def to_change(before: Entry, after: Entry) -> Entry:
    """Give what a usual cycle changes of an entry, a third of its bytes; the whole entry where it was not usual."""
    is_usual = len(before) == len(after) == OTHERS and after[PAYLOAD] is before[PAYLOAD]
    return [*after[DUE:VERSION], after[DECISIONS]] if is_usual and after[VERSION] == before[VERSION] + 1 else after


def apply_change(before: Entry, change: Entry) -> Entry:
    """Give the entry after a change."""
    if len(change) != _CHANGE_LENGTH:
        return change
    *moments, decisions = change
    return [before[ID], *moments, before[VERSION] + 1, before[PAYLOAD], decisions]


def shorten(entry: Entry) -> Entry:
    """Keep of an entry's decisions the last alone, and no reason twice; for a pack that has no room for more."""
    others: dict[str, Any] = entry[OTHERS] if len(entry) > OTHERS else {}
    if "parked_reason" in others:
        others["parked_reason"] = others["parked_reason"][:SHORTENED_MAX]
    for decision in entry[DECISIONS][-1:]:
        reason = "" if "parked_reason" in others else decision[-1][:SHORTENED_MAX]
        entry[DECISIONS] = [[*decision[:-1], reason]]
    return entry


def is_held(entry: Entry) -> bool:
    """Nothing runs, whatever the time: the message is parked or paused."""
    return len(entry) > OTHERS and ("parked_reason" in entry[OTHERS] or "is_paused" in entry[OTHERS])


def is_ended(entry: Entry) -> bool:
    """The message is done or stopped; of what is not yet in a pack: it is to be stopped."""
    return len(entry) > OTHERS and "ended" in entry[OTHERS]


def is_parked(entry: Entry) -> bool:
    """The message failed for good."""
    return len(entry) > OTHERS and "parked_reason" in entry[OTHERS]


def priority_of(entry: Entry) -> int:
    """Give the message's priority, 1 first."""
    return entry[OTHERS].get("priority", 3) if len(entry) > OTHERS else 3


def tenant_of(entry: Entry) -> str:
    """Give whose the message is; empty where nobody said."""
    return entry[OTHERS].get("tenant", "") if len(entry) > OTHERS else ""


def lane_of(entry: Entry, lane: str) -> str:
    """Give the lane on which the message's handler runs, in a pack of a lane."""
    return entry[OTHERS].get("lane", lane) if len(entry) > OTHERS else lane


def sources_of(entry: Entry) -> Mapping[str, int]:
    """Give the newest record of each source that the message has seen."""
    return entry[OTHERS].get("sources", {}) if len(entry) > OTHERS else {}


def measure(value: Any) -> int:
    """Give the bytes of an entry, or of a part of one."""
    return len(encode_json(value))
