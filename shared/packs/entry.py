"""Pack entries: one message of a pack as a compact JSON array, in a pack's state and on the way to it.

Columns: id, due (milliseconds since the epoch), how much sooner its earliest and how much later its latest moment is
(milliseconds), version, payload, decisions, and, only if one of them differs from its default, the other fields by
name. Decisions are arrays too; their moments and versions count back from the message's own.
"""

from collections.abc import Mapping
from typing import Any

from shared.messages.json_value import encode_json
from shared.messages.message import Decision, MessageState

Entry = list[Any]
ID, DUE, EARLY, LATE, VERSION, PAYLOAD, DECISIONS, OTHERS = range(8)
CHUNK_BYTES_MAX = 350_000  # of the entries in one start or signal: an empty pack takes them, even if nothing compresses
FORWARDED_BYTES_MAX = 200_000  # of those in one signal to another pack, which has to take them however full it is
STATE_BYTES_MAX = 400_000  # of a pack's state as it is stored: the server warns at 512 KiB, and takes 2 MB
ASSUMED_SHARE = 0.5  # what a state's JSON is compressed to until that is known: JSON of messages comes to a quarter
EXPANDED_BYTES_MAX = 1_200_000  # of a state as JSON: with other payloads it may compress less next time
WIRE_VERSION = 1  # version of the encoding of a pack's state
CYCLES_PER_RUN = "cycles_per_run"  # key in a batch's answer: cycles per message after which the pack continues as new
CYCLES_IN_FIRST_RUN = "cycles_in_first_run"  # another: the same for the first run, so that packs filled together differ
STORED_SHARE = "stored_share"  # key in a pack's input: the size of its stored state, as a share of its size as JSON
SHORTENED_MAX = 200  # characters of a reason in a pack that is short of room

ROUTINE = frozenset({"started", "again", "asked"})
_FIELDS = MessageState._fields
_DEFAULTS = MessageState._field_defaults
_OPTIONAL_SPAN = slice(_FIELDS.index("attempt"), _FIELDS.index("decisions"))
_OPTIONAL = _FIELDS[_OPTIONAL_SPAN]  # at their defaults in most messages; adjacent, to be compared at once
_OPTIONAL_DEFAULTS = tuple(_DEFAULTS[name] for name in _OPTIONAL)
_IDLE_DEFAULTS = tuple(_DEFAULTS[name] for name in _FIELDS[_OPTIONAL_SPAN.stop + 1 :])  # no handler is at work
_KNOWN = frozenset({*_OPTIONAL, "lane"})
_CHANGE_LENGTH = 4


def to_heading(
    kind: str,
    lane: str,
    *,
    index: int,
    packs: int,
    size: int,
    coalesce: float,
    payload_max_bytes: int = 0,  # the limit of a revision's payload; 0 = unknown
    stored_share: float = 0.0,  # 0 = unknown
) -> dict[str, Any]:
    """Give the wire form of a pack without messages: its first input, and later what precedes its entries."""
    heading = {
        "v": WIRE_VERSION,
        "kind": kind,
        "lane": lane,
        "index": index,
        "packs": packs,
        "size": size,
        "coalesce": coalesce,
    }
    optional = {"payload_max_bytes": payload_max_bytes, STORED_SHARE: stored_share}
    return heading | {name: value for name, value in optional.items() if value}


def to_entry(state: MessageState, lane: str) -> Entry:
    """Give the entry of a message whose handler is not at work; of routine decisions only the latest, to save room."""
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
            if number == len(state.decisions) or d.what not in ROUTINE
        ],
    ]
    optional = state[_OPTIONAL_SPAN]
    others = dict[str, Any]()

    if optional != _OPTIONAL_DEFAULTS:
        fields = zip(_OPTIONAL, optional, _OPTIONAL_DEFAULTS, strict=True)
        others = {n: value for n, value, default in fields if value is not default and value != default}

    if state.lane != lane:
        others["lane"] = state.lane
    if others:
        entry.append(others)
    return entry


def to_state(entry: Entry, kind: str, lane: str) -> MessageState:
    """Give the message of an entry; fields that a newer version may have added are ignored."""
    due = entry[DUE]
    version = entry[VERSION]
    late = entry[LATE]
    decisions = [
        Decision((due - at) / 1000, version - back, what, (due - then) / 1000, reason)
        for at, back, what, then, reason, *_ in entry[DECISIONS]
    ]
    latest = (due + late) / 1000 if late else 0.0
    # by position, which is faster; every cycle of every packed message runs this
    first = (kind, entry[ID], lane, due / 1000, (due - entry[EARLY]) / 1000, latest, entry[PAYLOAD], version)
    state = MessageState._make((*first, *_OPTIONAL_DEFAULTS, tuple(decisions), *_IDLE_DEFAULTS))
    if len(entry) <= OTHERS:
        return state

    return state._replace(**{n: value for n, value in entry[OTHERS].items() if n in _KNOWN})


def to_change(before: Entry, after: Entry) -> Entry:
    """Give what a typical cycle changes of an entry, a third of its bytes; otherwise the whole entry."""
    is_ordinary = len(before) == len(after) == OTHERS and after[PAYLOAD] is before[PAYLOAD]
    return [*after[DUE:VERSION], after[DECISIONS]] if is_ordinary and after[VERSION] == before[VERSION] + 1 else after


def apply_change(before: Entry, change: Entry) -> Entry:
    """Give the entry after a change."""
    if len(change) != _CHANGE_LENGTH:
        return change
    due, early, late, decisions = change
    return [before[ID], due, early, late, before[VERSION] + 1, before[PAYLOAD], decisions]


def shorten(entry: Entry) -> Entry:
    """Keep only the last decision of an entry, and no reason twice; for a pack that is short of room."""
    others: dict[str, Any] = entry[OTHERS] if len(entry) > OTHERS else {}
    if "parked_reason" in others:
        others["parked_reason"] = others["parked_reason"][:SHORTENED_MAX]
    for decision in entry[DECISIONS][-1:]:
        reason = "" if "parked_reason" in others else decision[-1][:SHORTENED_MAX]
        entry[DECISIONS] = [[*decision[:-1], reason]]
    return entry


def is_held(entry: Entry) -> bool:
    """Return whether nothing runs, whatever the time: the message is parked or paused."""
    return len(entry) > OTHERS and ("parked_reason" in entry[OTHERS] or "is_paused" in entry[OTHERS])


def is_ended(entry: Entry) -> bool:
    """Return whether the message is done or stopped; before it is in a pack: whether it is to be stopped."""
    return len(entry) > OTHERS and "ended" in entry[OTHERS]


def is_parked(entry: Entry) -> bool:
    """Return whether the message failed for good."""
    return len(entry) > OTHERS and "parked_reason" in entry[OTHERS]


def is_over(entry: Entry, now: float) -> bool:
    """Return whether the message's next call is its expiry, at `now` (seconds since the epoch)."""
    return len(entry) > OTHERS and 0.0 < entry[OTHERS].get("expires_at", 0.0) <= max(now, entry[DUE] / 1000)


def priority_of(entry: Entry) -> int:
    """Give the message's priority, 1 first."""
    return entry[OTHERS].get("priority", 3) if len(entry) > OTHERS else 3


def tenant_of(entry: Entry) -> str:
    """Give the message's tenant; empty if it has none."""
    return entry[OTHERS].get("tenant", "") if len(entry) > OTHERS else ""


def lane_of(entry: Entry, lane: str) -> str:
    """Give the lane on which the message's handler runs; `lane` is the pack's own."""
    return entry[OTHERS].get("lane", lane) if len(entry) > OTHERS else lane


def sources_of(entry: Entry) -> Mapping[str, int]:
    """Give the newest offset that the message has seen of each source."""
    return entry[OTHERS].get("sources", {}) if len(entry) > OTHERS else {}


def measure(value: Any) -> int:
    """Give the size of an entry, or of a part of one, in bytes."""
    return len(encode_json(value))
