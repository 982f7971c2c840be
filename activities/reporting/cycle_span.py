"""The span of a cycle: what is told of one call of a handler, when its message is among those that are sampled."""

from shared.messages.message import HandlerCall, Outcome
from shared.messages.placement import workflow_id
from shared.telemetry.sdk import Telemetry
from shared.telemetry.spans import NO_SPAN, Attributes, Span

FAILURES = ("failed", "reject")
"""Outcomes that are somebody's concern; the others are how messages live."""


def begin_cycle(telemetry: Telemetry, call: HandlerCall, started_at: float) -> Span:
    """Begin a trace for a call of a handler, linked to the record that the message came by and to its cycle before this one."""
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
    """End it with what the call came to, and note in the outcome what the next cycle is linked to."""
    if span is NO_SPAN:
        return outcome
    span.end({"outcome": outcome.verdict}, outcome.verdict if outcome.verdict in FAILURES else "")
    return outcome._replace(traced=span.traceparent)
