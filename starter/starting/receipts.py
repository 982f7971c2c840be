"""Receipts: the outcome of each requested start."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from shared.messages.placement import workflow_id
from shared.temporal.connect import is_transient, lacks_namespace, translate_rpc_error

Tag = TypeVar("Tag")


KEY_REUSED = "its idempotency key was used before for another body; send that body again, or take a new key"
"""Why a request is rejected whose idempotency key came with another body before."""
KEY_UNCHECKED = "it is kept; no worker has told yet whether its idempotency key was used before for another body"
"""What a request with an idempotency key adds that no worker has taken yet."""


class StartOutcome(enum.StrEnum):
    """Outcome of one requested start."""

    STARTED = "started"
    ALREADY_RUNNING = "already running"
    """The server knows the message: it is alive, or it has finished and finished messages are not started anew."""
    REVISED = "revised"
    """The message was alive, and a record gave it another payload."""
    STOPPED = "stopped"
    """The message was alive, and a record ended it."""
    IGNORED = "ignored"
    """The record is repeated or late: one at least as new was applied before, or there is nothing to stop."""
    REJECTED = "rejected"
    """The message can never be started as it is."""
    FAILED = "failed"
    """The server did not answer within the setting `patience`; the same start may succeed later."""


class Receipt(NamedTuple, Generic[Tag]):
    """Outcome of one envelope; `tag` is what the caller passed with it (a line number, an offset)."""

    tag: Tag
    workflow_id: str
    """`kind:id`, whatever workflow the message lives in."""
    outcome: StartOutcome
    run_id: str = ""
    reason: str = ""
    attempts: int = 1

    @property
    def has_taken(self) -> bool:
        """Whether the message is now what its envelope says."""
        return self.outcome in (StartOutcome.STARTED, StartOutcome.REVISED)

    @property
    def field(self) -> str:
        """The field of the envelope that the reason is about; empty if it is about none."""
        return "idempotency_key" if self.reason == KEY_REUSED else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReceipts(Generic[Tag]):
    """Outcomes of the messages of one chunk, as columns; iterating makes a receipt for each message."""

    kind: str
    ids: Sequence[str]
    tags: Sequence[Tag]
    run_id: str
    attempts: int
    others: Mapping[int, tuple[StartOutcome, str]]
    """Outcome and reason of the messages that were not simply started, by position."""

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Receipt[Tag]]:
        for position, (tag, message_id) in enumerate(zip(self.tags, self.ids, strict=True)):
            outcome, reason = self.others.get(position, (StartOutcome.STARTED, ""))
            yield Receipt(tag, workflow_id(self.kind, message_id), outcome, self.run_id, reason, self.attempts)


def to_refusal(exc: RPCError, tag: Tag, name: str, attempts: int) -> Receipt[Tag]:
    """Give the receipt of a start that failed, for good or after all patience; raises Misconfigured for the client."""
    if is_transient(exc) and not lacks_namespace(exc):
        return Receipt(tag, name, StartOutcome.FAILED, "", str(translate_rpc_error(exc)), attempts)
    if exc.status is RPCStatusCode.INVALID_ARGUMENT:
        return Receipt(tag, name, StartOutcome.REJECTED, "", f"the server refuses it ({exc.message})", attempts)
    raise translate_rpc_error(exc) from exc
