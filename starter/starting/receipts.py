"""Receipts: the outcome of each requested start."""

import enum
from typing import Generic, NamedTuple, TypeVar

from temporalio.service import RPCError, RPCStatusCode

from shared.temporal.connect import TRANSIENT, lacks_attribute, translate_rpc_error

Tag = TypeVar("Tag")


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


def to_refusal(exc: RPCError, tag: Tag, name: str, attempts: int) -> Receipt[Tag]:
    """Give the receipt of a start that failed, for good or after all patience; raises Misconfigured for the client."""
    if exc.status in TRANSIENT or lacks_attribute(exc):
        return Receipt(tag, name, StartOutcome.FAILED, "", str(translate_rpc_error(exc)), attempts)
    if exc.status is RPCStatusCode.INVALID_ARGUMENT:
        return Receipt(tag, name, StartOutcome.REJECTED, "", f"the server refuses it ({exc.message})", attempts)
    raise translate_rpc_error(exc) from exc
