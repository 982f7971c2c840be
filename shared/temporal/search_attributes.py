"""The search attributes that make messages visible: names, types, and who sets them when.

`Kind`, `Lane` and `State` are set at the start and seldom change. `DueAt` and `EarliestAt` are updated only when they
move by at least the setting `index_after`, because each update is a write to the visibility store. A message without
`DueAt` has been due, or nearly due, since it was started.
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

REQUIRED = {"Kind": "Keyword", "Lane": "Keyword", "State": "Keyword", "DueAt": "Datetime", "EarliestAt": "Datetime"}
"""Name → type, as Temporal's command line and its operator service write them."""


def attributes_at_start(state: MessageState, now: float, index_after: float) -> list[SearchAttributePair[Any]]:
    """Give a new message's attributes; its times only if it is due `index_after` seconds from now or later."""
    pairs = _pairs(state.kind, state.lane, state.phase)
    if state.due_at - now >= index_after:
        pairs.append(SearchAttributePair(DUE_AT, _moment(state.due_at)))
        pairs.append(SearchAttributePair(EARLIEST_AT, _moment(state.earliest_at)))
    return pairs


def attribute_updates(old: MessageState, new: MessageState, index_after: float) -> list[SearchAttributeUpdate[Any]]:
    """Give the attribute updates for the change from `old` to `new`; none in the common case of a short delay.

    A due time that moves by less than `index_after` seconds is written only together with another update. Until then
    the index says "due by now or very soon", which is true.
    """
    updates: list[SearchAttributeUpdate[Any]] = []
    if new.phase != old.phase:
        updates.append(STATE.value_set(new.phase))
    if new.lane != old.lane:
        updates.append(LANE.value_set(new.lane))
    moved = abs(new.due_at - old.due_at)
    if not new.ended and (moved >= index_after or (updates and moved)):
        updates += _set_times(new)

    return updates


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What the index stores of a pack: its first due time, whether a message is parked, its first earliest time."""

    due_at: float
    has_parked: bool = False
    earliest_at: float = math.inf

    @property
    def state(self) -> str:
        """The word people see as search attribute `State`."""
        return HAS_PARKED if self.has_parked else "active"

    def dump(self) -> list[Any]:
        """Give the wire form; its first value is None when nothing in the pack is due."""
        return [None if math.isinf(self.due_at) else self.due_at, self.has_parked]

    @classmethod
    def load(cls, wire: Sequence[Any] | None) -> "PackIndex":
        """Read a wire form; None stands for a new pack."""
        stored, has_parked = wire or (None, False)
        due_at = math.inf if stored is None else stored
        return cls(due_at, has_parked)


def pack_attributes_at_start(kind: str, lane: str) -> list[SearchAttributePair[Any]]:
    """Give a new pack's attributes; the pack itself adds its due time later."""
    return _pairs(kind, lane, PackIndex.load(None).state)


def pack_updates(old: PackIndex, new: PackIndex, index_after: float) -> list[SearchAttributeUpdate[Any]]:
    """Give a pack's attribute updates; its times only if `State` changes or the due time moves far enough."""
    updates: list[SearchAttributeUpdate[Any]] = []
    if new.has_parked != old.has_parked:
        updates.append(STATE.value_set(new.state))
    if math.isfinite(new.due_at) and (updates or not abs(new.due_at - old.due_at) < index_after):
        updates += _set_times(new)
    return updates


def parked_memo(state: MessageState) -> dict[str, str | float] | None:
    """Give the memo of a parked message, else None; it stays after a replay: read it only where `State` is parked."""
    return {"parked_reason": state.parked_reason, "parked_at": state.parked_at} if state.is_parked else None


def _pairs(kind: str, lane: str, state: str) -> list[SearchAttributePair[Any]]:
    return [SearchAttributePair(KIND, kind), SearchAttributePair(LANE, lane), SearchAttributePair(STATE, state)]


def _set_times(new: MessageState | PackIndex) -> list[SearchAttributeUpdate[Any]]:
    return [DUE_AT.value_set(_moment(new.due_at)), EARLIEST_AT.value_set(_moment(new.earliest_at))]


def _moment(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
