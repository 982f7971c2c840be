"""The span of a cycle: covers one call of a handler, if its message is sampled."""

from shared.messages.message import HandlerCall, Outcome
from shared.messages.placement import workflow_id
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span

FAILURES = ("failed", "reject")
"""Outcomes that a span marks as errors; all others are normal."""


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
