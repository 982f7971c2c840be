"""What a worker reports of each call of a handler: metrics, and a span if the message is sampled."""

from shared.messages.message import HandlerCall, Outcome
from shared.messages.placement import workflow_id
from shared.telemetry.metrics import CYCLES, GATED, HANDLER_DURATION, LATENESS, PARKED
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span

FAILURES = ("failed", "reject")
"""Outcomes that a span marks as errors; all others are normal."""


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


def begin_cycle(telemetry: Telemetry, call: HandlerCall, started_at: float) -> Span:
    """Begin a trace for a handler's call, linked to the message's record and to its previous cycle."""
    name = workflow_id(call.kind, call.id)
    if not telemetry.samples(name.encode()):
        return NO_SPAN
    attributes: Attributes = {
        "kind": call.kind,
        "lane": call.lane,
        "workflow_id": name,
        "correlation_id": call.correlation_id,
        "version": call.version,
        "attempt": call.attempt,
        "tenant": call.tenant,
        "lateness_seconds": round(max(started_at - call.due_at, 0.0), 3),
    }
    links = {"record": call.trace, "previous cycle": {"traceparent": call.traced}}
    return telemetry.begin_span(f"cycle {call.kind}", attributes, links)


def end_cycle(span: Span, outcome: Outcome) -> Outcome:
    """End the span with the call's outcome, and note in the outcome what the next cycle is linked to."""
    if span is NO_SPAN:
        return outcome
    span.end({"outcome": outcome.verdict}, outcome.verdict if outcome.verdict in FAILURES else "")
    return outcome._replace(traced=span.traceparent)
