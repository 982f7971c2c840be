"""Listing: what the server's index says of one message, without asking the message itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus

from shared.messages.placement import identity_of
from shared.temporal.search_attributes import DUE_AT, EARLIEST_AT, LANE, STATE
from starter.steering.status.reasons import holds

ENDED_OTHERWISE = {
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "canceled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
}
"""Ends that are caused from outside; the attribute `State` still has the value from before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMessage:
    """One message as the index shows it, eventually consistent."""

    kind: str
    id: str
    lane: str
    state: str
    due_at: datetime | None
    """None when the index does not have it; an active message is then due now or soon."""
    earliest_at: datetime | None
    started_at: datetime | None = None
    """None for a packed message."""
    parked_reason: str = ""
    parked_at: datetime | None = None

    @property
    def is_due_soon(self) -> bool:
        """The message is due now or soon; only the message itself knows the exact time."""
        return self.state == "active" and self.due_at is None

    def to_document(self) -> dict[str, Any]:
        """Give it as an object for JSON."""
        names = ("kind", "id", "lane", "state", "due_at", "is_due_soon", "earliest_at", "started_at")
        if self.state == "parked":
            names += ("parked_reason", "parked_at")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSelection:
    """Which parked messages are meant; None stands for all."""

    reason: str | None = None
    """Text that the reason for which they were parked holds, with "…" for any text in between."""
    before: datetime | None = None
    """They were parked before then."""

    def keeps(self, listed: ListedMessage) -> bool:
        """Whether a parked message is meant."""
        is_old = self.before is None or (listed.parked_at is not None and listed.parked_at < self.before)
        return is_old and (self.reason is None or holds(listed.parked_reason, self.reason))


def describe_left_out(sentences: Sequence[str]) -> str:
    """Say in a sentence how many packs are missing in a list, and why the first of them is; empty without any."""
    if not sentences:
        return ""
    are_missing = "1 pack is" if len(sentences) == 1 else f"{len(sentences):,} packs are"
    return f"{are_missing} missing: {sentences[0]}"


def from_pack(kind: str, message: Mapping[str, Any]) -> ListedMessage:
    """Read a packed message from its pack's answer to the query `page`."""
    parked_at = datetime.fromtimestamp(message["parked_at"], UTC) if message["parked_at"] else None
    return ListedMessage(
        kind=kind,
        id=message["id"],
        lane=message["lane"],
        state=message["state"],
        due_at=datetime.fromtimestamp(message["due_at"], UTC),
        earliest_at=datetime.fromtimestamp(message["earliest_at"], UTC),
        parked_reason=message["parked_reason"],
        parked_at=parked_at,
    )


def from_status(status: Mapping[str, Any]) -> ListedMessage:
    """Read a packed message from its pack's answer to the query `known`."""
    earliest_at = datetime.fromisoformat(status["earliest_at"].replace(" UTC", "Z")).timestamp()
    as_in_page = {"state": status["phase"], "due_at": status["due_at_epoch"], "earliest_at": earliest_at}
    return from_pack(status["kind"], {**status, **as_in_page})


async def to_listed(execution: WorkflowExecution | WorkflowExecutionDescription) -> ListedMessage:
    """Read a message from its workflow's attributes and memo."""
    kind, message_id = identity_of(execution.id)
    attributes = execution.typed_search_attributes
    state = state_of(execution)
    memo: Mapping[str, Any] = await execution.memo() if state == "parked" else {}
    due_at = attributes.get(DUE_AT)
    earliest_at = attributes.get(EARLIEST_AT)
    if state == "active" and due_at is not None and due_at <= datetime.now(UTC):
        # changes by less than the setting `index_after` are not indexed: this may be the due time of an older cycle
        due_at = earliest_at = None

    parked_at = datetime.fromtimestamp(memo["parked_at"], UTC) if memo.get("parked_at") else None
    return ListedMessage(
        kind=kind,
        id=message_id,
        lane=attributes.get(LANE, ""),
        state=state,
        due_at=due_at,
        earliest_at=earliest_at,
        started_at=execution.start_time,
        parked_reason=memo.get("parked_reason", ""),
        parked_at=parked_at,
    )


def state_of(execution: WorkflowExecution) -> str:
    """Give the state of a message or pack by its attribute, or how its workflow was ended from outside."""
    state = execution.typed_search_attributes.get(STATE, "")
    return state if execution.status is None else ENDED_OTHERWISE.get(execution.status, state)
