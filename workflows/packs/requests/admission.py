"""Admission: what a chunk's entries, and records among them, do to a pack's messages."""

import heapq
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from shared.messages.decision import is_key_reused, is_repeated
from shared.messages.message import MessageState
from shared.messages.signals import REQUEST, PullMany, Revise, Signal, Stop
from shared.messages.timespan import floor_ms
from shared.packs.entry import DUE, EARLY, ID, Entry, is_ended, is_held, sources_of
from workflows.packs.requests.receipts import KNOWN, REUSED


def pick_pulled(entries: Iterable[Entry], pull: PullMany) -> list[tuple[str, Signal]]:
    """Pick messages that idle capacity may run before they are due, earliest due first; each with its signal."""
    now = floor_ms(pull.at)
    last = floor_ms(pull.until)
    ahead = (e for e in entries if e[DUE] - e[EARLY] <= now < e[DUE] <= last and not is_held(e))
    first = heapq.nsmallest(pull.count, ahead, key=lambda entry: (entry[DUE], entry[ID]))
    return [(entry[ID], pull.of(entry[DUE])) for entry in first]


def clamp_due(entry: Entry, sent_at: float, now: float) -> None:
    """Let an entry be due now that was due when it was sent by a clock that is ahead of the server's."""
    if now * 1000 < entry[DUE] <= sent_at * 1000:
        entry[DUE] = round(now * 1000)


def is_newer(entry: Entry, present: MessageState | None) -> bool:
    """Return whether an entry comes from a record that the message has not seen."""
    return present is None or any(not is_repeated(present.sources, s, o) for s, o in sources_of(entry).items())


def find_repetition(entry: Entry, present: MessageState, *, revises: bool) -> str | None:
    """Return what becomes of a request whose key the message knows, empty for "as at the first time"; None if new."""
    for source, offset in sources_of(entry).items():
        if is_key_reused(present.sources, source, offset):
            return REUSED
        if source.startswith(REQUEST) and source in present.sources:
            return KNOWN if revises else ""
    return None


def may_begin(entry: Entry, chunk: Mapping[str, Any], finished: MessageState | None) -> bool:
    """Return whether an entry of a chunk may begin a message that is not alive but may have `finished` before."""
    revises = chunk.get("revises", False)
    if revises and is_ended(entry):
        return False
    return finished is None or bool(chunk.get("restarts")) or (revises and is_newer(entry, finished))


def to_signal(asked: MessageState) -> Signal:
    """Return a record's signal to a message that is alive; `asked` is the state if the record began the message."""
    ((source, offset),) = asked.sources.items()
    if asked.ended:
        return Stop.of_record(source, offset)

    expires_at = datetime.fromtimestamp(asked.expires_at, UTC) if asked.expires_at else None
    return Revise.of_record(
        source,
        offset,
        asked.payload,
        lane=asked.lane,
        due_at=datetime.fromtimestamp(asked.due_at, UTC),
        priority=asked.priority,
        expires_at=expires_at,
        trace=asked.trace,
    )
