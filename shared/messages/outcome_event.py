"""The outcome event: the result of one cycle, as the outcomes topic has it."""

from typing import Any

from shared.messages.decision import Spread, begin, decide
from shared.messages.message import HandlerCall, MessageState, Outcome
from shared.messages.timespan import format_exact


def to_event(call: HandlerCall, outcome: Outcome, started_at: float, spread: Spread | None = None) -> dict[str, Any]:
    """Give the event of a cycle that ran from `started_at` to the outcome's `ended_at`, as plain JSON.

    `state` and `next_due_at` are what the decision makes of the outcome alone, whatever signals came meanwhile.
    """
    before = MessageState(
        *(call.kind, call.id, call.lane, call.due_at, call.due_at),
        version=call.version,
        attempt=call.attempt - 1,
        priority=call.priority,
        expires_at=call.expires_at,
    )
    after = decide(begin(before), outcome, outcome.ended_at, spread=spread)
    is_waiting = not after.is_held and not after.ended

    return {
        "schema_version": 1,
        "kind": call.kind,
        "id": call.id,
        "version": call.version,
        "attempt": call.attempt,
        "outcome": outcome.word,
        "state": after.phase,
        "reason": after.decisions[-1].reason,
        "lane": call.lane,
        "priority": call.priority,
        "tenant": call.tenant,
        "due_at": format_exact(call.due_at),
        "started_at": format_exact(started_at),
        "duration_seconds": round(max(outcome.ended_at - started_at, 0.0), 3),
        "lateness_seconds": round(max(started_at - call.due_at, 0.0), 3),
        "next_due_at": format_exact(after.due_at) if is_waiting else None,
        "next_lane": after.lane,
        "correlation_id": call.correlation_id,
    }
