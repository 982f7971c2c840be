"""Cycle metrics: what a worker measures of each call of a handler."""

from shared.messages.message import HandlerCall, Outcome
from shared.telemetry.metrics import CYCLES, GATED, HANDLER_DURATION, LATENESS, PARKED
from shared.telemetry.sdk import Telemetry


def record_cycle(telemetry: Telemetry, call: HandlerCall, outcome: Outcome, started_at: float, ended_at: float) -> None:
    """Record a cycle's outcome, its duration, and how late it began; times are seconds since the epoch."""
    of_kind = {"kind": call.kind, "lane": call.lane}
    if outcome.verdict == "gated":
        telemetry.record(GATED, 1, of_kind)
        return
    telemetry.record(CYCLES, 1, of_kind | {"outcome": outcome.verdict})
    telemetry.record(HANDLER_DURATION, ended_at - started_at, of_kind)
    # a requested run, or idle capacity, has made the message due at that moment
    telemetry.record(LATENESS, max(started_at - call.due_at, 0.0), of_kind)
    if outcome.verdict == "reject" or (outcome.verdict == "failed" and call.attempt >= outcome.max_attempts):
        telemetry.record(PARKED, 1, of_kind)
