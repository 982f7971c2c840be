"""Selections: filters of messages, each written as one visibility query."""

from dataclasses import dataclass
from datetime import UTC, datetime

from shared.lanes import LANES
from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW

STATES = ("active", "paused", "parked", "done", "stopped")
_ALIVE = ("active", "paused", "parked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that match every given field; without any, all that are alive.

    `due_before` compares with the indexed due time, which may differ from the real one by the setting `index_after`.
    """

    kind: str | None = None
    lane: str | None = None
    state: str | None = None
    due_before: datetime | None = None

    @property
    def is_everything(self) -> bool:
        """No field narrows it."""
        return self == Selection()

    @property
    def narrows_packs(self) -> bool:
        """The index can exclude packs: it knows which have parked messages, and when each is due next."""
        return self.state == "parked" or self.due_before is not None

    def to_query(self) -> str:
        """Write the visibility query; raises ValueError for a lane or state that does not exist."""
        if self.lane is not None and self.lane not in LANES:
            raise ValueError(f"--lane is {self.lane!r}; use one of {', '.join(LANES)}")
        if self.state is not None and self.state not in STATES:
            raise ValueError(f"--state is {self.state!r}; use one of {', '.join(STATES)}")
        is_alive = self.state is None or self.state in _ALIVE
        parts = [
            f"WorkflowType = {quote(MESSAGE_WORKFLOW)}",
            "ExecutionStatus = " + ("'Running'" if is_alive else "'Completed'"),
        ]
        for name, value in (("Kind", self.kind), ("Lane", self.lane), ("State", self.state)):
            if value is not None:
                parts.append(f"{name} = {quote(value)}")
        if self.due_before is not None:
            # a message without DueAt is due now or very soon
            parts.append(f"(DueAt < {quote(self.due_before.astimezone(UTC).isoformat())} OR DueAt IS NULL)")
        return " AND ".join(parts)

    def to_pack_query(self) -> str:
        """Write the visibility query for the packs that may hold such messages; only they know whether they do."""
        parts = [f"WorkflowType = {quote(PACK_WORKFLOW)}", "ExecutionStatus = 'Running'"]
        if self.kind is not None:
            parts.append(f"Kind = {quote(self.kind)}")
        if self.state == "parked":
            parts.append(f"State = {quote(HAS_PARKED)}")
        if self.due_before is not None:
            parts.append(f"(DueAt < {quote(self.due_before.astimezone(UTC).isoformat())} OR DueAt IS NULL)")
        return " AND ".join(parts)


def quote(value: str) -> str:
    """Quote text for a visibility query."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
