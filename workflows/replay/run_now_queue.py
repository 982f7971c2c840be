"""Run-now queue: what must begin at once because somebody asked for it, whatever the clock says."""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from shared.messages import signals
from shared.messages.message import MessageState
from shared.messages.signals import PullMany, Signal, UnreadableSignal, moment_of
from shared.packs.entry import (
    DUE,
    EARLY,
    ID,
    OTHERS,
    Entry,
    is_ended,
    is_held,
    lane_of,
    priority_of,
    sources_of,
    tenant_of,
)


def pick_pulled(entries: Iterable[Entry], pull: PullMany) -> list[tuple[str, Signal]]:
    """Pick messages that idle capacity may run before they are due, earliest due first; each with its signal."""
    now, last = math.floor(pull.at * 1000), math.floor(pull.until * 1000)
    ahead = (e for e in entries if e[DUE] - e[EARLY] <= now < e[DUE] <= last and not is_held(e))
    first = heapq.nsmallest(pull.count, ahead, key=lambda entry: (entry[DUE], entry[ID]))
    return [(entry[ID], pull.of(entry[DUE])) for entry in first]


def asks_at_once(
    signal: Signal | UnreadableSignal, before: MessageState, after: MessageState, replay_time: float
) -> bool | None:
    """Return True if a signal made its message due by `replay_time`, False if at another moment, None if neither."""
    if isinstance(signal, UnreadableSignal) or is_ignored(before, after):
        return None
    if isinstance(signal, signals.RunNow) or ((moment := moment_of(signal)) is not None and moment <= replay_time):
        return True
    is_moved = (after.due_at, after.asked_due_at) != (before.due_at, before.asked_due_at)
    return isinstance(signal, signals.PullForward) if is_moved else None


def is_ignored(before: MessageState, after: MessageState) -> bool:
    """Return whether a signal did nothing to a message: it was a redelivery, or could not be read."""
    return after is before or (after.decisions != before.decisions and after.decisions[-1].what == "ignored")


def is_newer(entry: Entry, present: MessageState | None) -> bool:
    """Return whether an entry comes from a record that the message has not seen."""
    return present is None or any(o > present.sources.get(s, -1) for s, o in sources_of(entry).items())


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
        return signals.Stop(signals.TOMBSTONE, source, offset)
    due_at, expires_at = (_write_moment(moment) for moment in (asked.due_at, asked.expires_at))
    given = (asked.payload, source, offset, asked.lane, due_at)
    return signals.Revise(*given, priority=asked.priority, trace=dict(asked.trace), expires_at=expires_at)


def _write_moment(moment: float) -> str | None:
    return datetime.fromtimestamp(moment, UTC).isoformat() if moment else None


class RunNowQueue:
    """Messages that must begin at once, `run_now` first; signal times differ on replay, so they order nothing."""

    def __init__(self) -> None:
        self._order: dict[str, int] = {}

    def note_sent(self, entry: Entry, sent_at: float) -> None:
        """Add an admitted message if it was due when sent (`sent_at`, seconds since the epoch), else remove it."""
        if entry[DUE] <= sent_at * 1000:
            self.note(entry, entry[DUE])
        else:
            self.forget(entry[ID])

    def note(self, entry: Entry, order: int | None) -> None:
        """Add a message at its place in the order; None adds nothing."""
        if order is not None:
            self._order[entry[ID]] = order

    def note_signal(
        self, signal: Signal | UnreadableSignal, before: MessageState, after: MessageState, replay_time: float
    ) -> None:
        """Add or remove a message as its signal asked, with the replay time when the signal was applied."""
        is_asked = asks_at_once(signal, before, after, replay_time)
        if is_asked and isinstance(signal, signals.PullForward):  # what runs ahead of time goes after everything due
            self._order[after.id] = round(before.due_at * 1000)
        elif is_asked:  # every past moment counts as the replay time
            self._order[after.id] = 0 if isinstance(signal, signals.RunNow) else math.floor(replay_time * 1000)
        elif is_asked is False:
            self.forget(after.id)

    def forget(self, message_id: str) -> int | None:
        """Remove a message; return its place in the order, if it had one."""
        return self._order.pop(message_id, None)

    def find_due(self, entries: Iterable[Entry], lanes: Collection[str], usual_lane: str, moment: float) -> list[Entry]:
        """Find the messages that are due by `moment` or in this queue, and can begin on `lanes`."""
        cutoff, order, is_usual_open = math.floor(moment * 1000), self._order, usual_lane in lanes
        due = [e for e in entries if e[DUE] <= cutoff or (order and e[ID] in order)]
        # a call for each of a thousand entries would take as long as all the rest
        return [
            e
            for e in due
            if (is_usual_open if len(e) <= OTHERS else not is_held(e) and lane_of(e, usual_lane) in lanes)
        ]

    def has_any(self, entries: Mapping[str, Entry], lanes: Collection[str], usual_lane: str) -> bool:
        """Return whether a message in this queue can begin on `lanes`."""
        found = (entries[message_id] for message_id in self._order if message_id in entries)
        return any(lane_of(entry, usual_lane) in lanes and not is_held(entry) for entry in found)

    def urgency(self, entry: Entry) -> tuple[int, int, str]:
        """Return the sort key of a due message: higher priority first, then longest due; no two are equal."""
        due: int = entry[DUE]
        return priority_of(entry), self._order.get(entry[ID], due), entry[ID]

    def find_lane(self, due: Collection[Entry], usual_lane: str) -> str:
        """Return the lane of the most urgent of some due messages."""
        if all(len(entry) <= OTHERS for entry in due):
            return usual_lane
        return lane_of(min(due, key=self.urgency), usual_lane)

    def in_order(self, entries: Iterable[Entry]) -> list[Entry]:
        """Order due messages by urgency; tenants of one priority take turns, so none waits for all of another's."""
        ordered = sorted(entries, key=self.urgency)
        if len(set(map(tenant_of, ordered))) < 2:
            return ordered
        given: Counter[tuple[int, str]] = Counter()

        def turn(entry: Entry) -> tuple[int, int]:
            priority = priority_of(entry)
            given[whose := (priority, tenant_of(entry))] += 1
            return priority, given[whose]

        return sorted(ordered, key=turn)
