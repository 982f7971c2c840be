"""Receipts: what became of every wish to start a message, and how many came to what."""

import enum
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from shared.temporal.connect import TRANSIENT, lacks_attribute, translate_rpc_error

Tag = TypeVar("Tag")


class StartOutcome(enum.StrEnum):
    """What became of one wish to start a message."""

    STARTED = "started"
    ALREADY_RUNNING = "already running"
    """The server knows the message: it is alive, or has finished and finished ones were not to be started anew."""
    REVISED = "revised"
    """It was alive, and a record has given it another payload."""
    STOPPED = "stopped"
    """It was alive, and a record has ended it."""
    IGNORED = "ignored"
    """A record came again, or late: something as new has been applied, or there is nothing to stop."""
    REJECTED = "rejected"
    """It can never be started as it is."""
    FAILED = "failed"
    """The server stayed away longer than the setting `patience`; the same start may succeed later."""


class Receipt(NamedTuple, Generic[Tag]):
    """What became of one envelope; `tag` is what the caller gave with it (a line number, an offset)."""

    tag: Tag
    workflow_id: str
    """`kind:id`, whatever workflow the message lives in."""
    outcome: StartOutcome
    run_id: str = ""
    reason: str = ""
    attempts: int = 1


@dataclass(slots=True)
class Counts:
    """Running totals of one starter."""

    by_outcome: dict[StartOutcome, int] = field(default_factory=lambda: dict.fromkeys(StartOutcome, 0))

    @property
    def total(self) -> int:
        """All receipts given so far."""
        return sum(self.by_outcome.values())


def to_refusal(exc: RPCError | None, tag: Tag, name: str, attempts: int) -> Receipt[Tag]:
    """Give the receipt of a start that failed for good, or for longer than our patience.

    Raises Misconfigured when the server refuses this client as such.
    """
    if exc is None or exc.status in TRANSIENT or lacks_attribute(exc):
        reason = "" if exc is None else str(translate_rpc_error(exc))
        return Receipt(tag, name, StartOutcome.FAILED, "", reason, attempts)
    if exc.status is RPCStatusCode.INVALID_ARGUMENT:
        return Receipt(tag, name, StartOutcome.REJECTED, "", f"the server refuses it ({exc.message})", attempts)
    raise translate_rpc_error(exc) from exc
