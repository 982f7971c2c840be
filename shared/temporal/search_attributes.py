"""The search attributes that make messages visible: names, types, and who sets them when.

`Kind`, `Lane` and `State` are set at the start and change seldom; `DueAt` and `EarliestAt` follow a decision
only when they move by at least the setting `index_after`, because each change is a write to the visibility store.
A message without `DueAt` is due by now or very soon, and has been since it was started.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, SearchAttributeUpdate

from shared.messages.message import MessageState
from shared.messages.placement import HAS_PARKED

KIND = SearchAttributeKey.for_keyword("Kind")
LANE = SearchAttributeKey.for_keyword("Lane")
STATE = SearchAttributeKey.for_keyword("State")
DUE_AT = SearchAttributeKey.for_datetime("DueAt")
EARLIEST_AT = SearchAttributeKey.for_datetime("EarliestAt")

REQUIRED: dict[str, str] = {
    "Kind": "Keyword",
    "Lane": "Keyword",
    "State": "Keyword",
    "DueAt": "Datetime",
    "EarliestAt": "Datetime",
}
"""Name → type, as Temporal's command line and its operator service write them."""


def attributes_at_start(state: MessageState, now: float, index_after: float) -> list[SearchAttributePair[Any]]:
    """Give what a new message is indexed with; its times only when it is due `index_after` seconds from now or later."""
    pairs: list[SearchAttributePair[Any]] = [
        SearchAttributePair(KIND, state.kind),
        SearchAttributePair(LANE, state.lane),
        SearchAttributePair(STATE, state.phase),
    ]
    if state.due_at - now >= index_after:
        pairs.append(SearchAttributePair(DUE_AT, _moment(state.due_at)))
        pairs.append(SearchAttributePair(EARLIEST_AT, _moment(state.earliest_at)))
    return pairs


def attribute_updates(old: MessageState, new: MessageState, index_after: float) -> list[SearchAttributeUpdate[Any]]:
    """Give the updates that the way from `old` to `new` owes the index, none in the common short-delay case.

    A due time that moves by less than `index_after` seconds is written only when something else is: until it moves
    further the index says "due by now or very soon", which is true.
    """
    updates: list[SearchAttributeUpdate[Any]] = []
    if new.phase != old.phase:
        updates.append(STATE.value_set(new.phase))
    if new.lane != old.lane:
        updates.append(LANE.value_set(new.lane))
    moved = abs(new.due_at - old.due_at)
    if not new.ended and (moved >= index_after or (updates and moved)):
        updates.append(DUE_AT.value_set(_moment(new.due_at)))
        updates.append(EARLIEST_AT.value_set(_moment(new.earliest_at)))
    return updates


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What the index says of a pack: when the first is due, whether any is parked, and when the first may be pulled forward."""

    due_at: float
    has_parked: bool = False
    earliest_at: float = math.inf

    @property
    def state(self) -> str:
        """The word people see as search attribute `State`."""
        return HAS_PARKED if self.has_parked else "active"

    def dump(self) -> list[Any]:
        """Give the wire form; a pack without anything due has no number for it."""
        return [None if math.isinf(self.due_at) else self.due_at, self.has_parked]

    @classmethod
    def load(cls, wire: Sequence[Any] | None) -> "PackIndex":
        """Read a wire form, or what a new pack is indexed with."""
        due_at, has_parked = wire or (None, False)
        return cls(math.inf if due_at is None else due_at, has_parked)


def pack_attributes_at_start(kind: str, lane: str) -> list[SearchAttributePair[Any]]:
    """Give what a new pack is indexed with; when it is due it says itself."""
    return [
        SearchAttributePair(KIND, kind),
        SearchAttributePair(LANE, lane),
        SearchAttributePair(STATE, PackIndex.load(None).state),
    ]


def pack_updates(old: PackIndex, new: PackIndex, index_after: float) -> list[SearchAttributeUpdate[Any]]:
    """Give the updates that a pack owes the index: its first times only when the due one moves far enough."""
    updates: list[SearchAttributeUpdate[Any]] = []
    if new.has_parked != old.has_parked:
        updates.append(STATE.value_set(new.state))
    if math.isfinite(new.due_at) and (updates or not abs(new.due_at - old.due_at) < index_after):
        updates.append(DUE_AT.value_set(_moment(new.due_at)))
        updates.append(EARLIEST_AT.value_set(_moment(new.earliest_at)))
    return updates


def parked_memo(state: MessageState) -> dict[str, str | float] | None:
    """Give what a list of parked messages shows beside the attributes, None while the message is not parked.

    The memo stays on a message that was replayed: read it only where `State` says parked.
    """
    return {"parked_reason": state.parked_reason, "parked_at": state.parked_at} if state.is_parked else None


def _moment(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
