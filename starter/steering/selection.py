"""Selections: filters of messages, each written as one visibility query."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from shared.lanes import LANES
from shared.messages.message import ENDS
from shared.messages.placement import HAS_PARKED, MESSAGE_WORKFLOW, PACK_WORKFLOW

STATES = ("active", "paused", "parked", *ENDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Messages that match every given field; without any, all that are alive.

    `due_before` compares with the indexed due time, which may differ from the real one by the setting `index_after`.
    """

    kind: str | None = None
    lane: str | None = None
    state: str | None = None
    due_before: datetime | None = None

    def to_query(self) -> str:
        """Write the visibility query; raises ValueError for a lane or state that does not exist."""
        for name, value, known in (("lane", self.lane, LANES), ("state", self.state, STATES)):
            if value is not None and value not in known:
                raise ValueError(f"--{name} is {value!r}; use one of {', '.join(known)}")
        status = "Completed" if self.state in ENDS else "Running"
        return self._to_query(MESSAGE_WORKFLOW, status, Kind=self.kind, Lane=self.lane, State=self.state)

    def to_pack_query(self) -> str:
        """Write the visibility query for the packs that may hold such messages; only they know whether they do."""
        state = HAS_PARKED if self.state == "parked" else None
        return self._to_query(PACK_WORKFLOW, "Running", Kind=self.kind, State=state)

    def to_page_request(self) -> dict[str, Any]:
        """Write the argument of a pack's query `page`."""
        due_before = self.due_before and self.due_before.timestamp()
        fields = {"state": self.state, "lane": self.lane, "due_before": due_before}
        return {name: value for name, value in fields.items() if value is not None}

    def _to_query(self, workflow_type: str, status: str, **attributes: str | None) -> str:
        parts = [f"WorkflowType = {quote(workflow_type)}", f"ExecutionStatus = {quote(status)}"]
        parts += [f"{name} = {quote(value)}" for name, value in attributes.items() if value is not None]
        if self.due_before is not None:
            # a message without DueAt is due now or very soon
            parts.append(f"(DueAt < {quote(self.due_before.astimezone(UTC).isoformat())} OR DueAt IS NULL)")
        return " AND ".join(parts)


def quote(value: str) -> str:
    """Quote text for a visibility query."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
