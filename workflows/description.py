"""Descriptions for people: the answers of queries, and the current details in the Web UI."""

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared.keepers.capacity import WorkerCapacity
from shared.keepers.gates import GateClosure
from shared.messages.message import Decision, MessageState
from shared.messages.timespan import format_moment, format_seconds
from workflows.packs.summary import PackSummary

PAGE_MAX = 1000  # most messages in one answer of a pack
_LISTED = ("id", "lane", "due_at", "earliest_at", "parked_reason", "parked_at")
_MARKUP = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>&|~"} | {"\r": " ", "\n": " "})


def explain_due(state: MessageState) -> str:
    """Say in one sentence why the message is due when it is."""
    if state.ended:
        return f"{state.phase}{_because(state.decisions[-1:])}"
    if state.asked_stop is not None:
        return "stopped as soon as its handler has ended" + (f": {state.asked_stop}" if state.asked_stop else "")
    if state.is_parked:
        return f"parked: {state.parked_reason}"

    if state.is_paused:
        pauses = [d for d in state.decisions if d.what == "pause"]
        return f"paused{_because(pauses[-1:])}; would be due {format_moment(state.due_at)}"

    word = "expires" if state.is_expiring else "due"
    return f"{word} {format_moment(state.due_at)}{_because(_find_cause(state))}"


def describe_status(state: MessageState, held: str = "") -> dict[str, Any]:
    """Answer the `status` query, moments as text; `held` says which signals wait for a key.

    All is in one answer, because a server refuses a second query while one waits for a workflow's task.
    """
    return {
        "kind": state.kind,
        "id": state.id,
        "state": _phase(state),
        "phase": state.phase,
        "parked_reason": state.parked_reason,
        "parked_at": state.parked_at,
        "lane": state.lane,
        "version": state.version,
        "attempt": state.attempt,
        "priority": state.priority,
        "tenant": state.tenant,
        "due_at": format_moment(state.due_at),
        "due_at_epoch": state.due_at,
        "earliest_at": format_moment(state.earliest_at),
        "expires_at": format_moment(state.expires_at) if state.expires_at else None,
        "why": f"{explain_due(state)}; {held}" if held else explain_due(state),
        "payload": state.payload,
        "revision": state.revision,
        "sources": dict(state.sources),
        "correlation_id": state.correlation_id,
        "result": state.result,
        "decisions": _describe_decisions(state),
    }


def describe_decisions(state: MessageState) -> dict[str, Any]:
    """Answer the `explain` query: the reason in a sentence, then the last decisions, oldest first."""
    return {"why": explain_due(state), "decisions": _describe_decisions(state)}


def _describe_decisions(state: MessageState) -> list[dict[str, Any]]:
    return [d._asdict() | {"at": format_moment(d.at), "due_at": format_moment(d.due_at)} for d in state.decisions]


def describe_markdown(state: MessageState) -> str:
    """Write the Web UI's current details: the state in bold and why, where it stands, and the last decisions."""
    facts = [f"lane {state.lane}", f"priority {state.priority}", f"version {state.version}"]
    facts += [f"failed attempts {state.attempt}"] if state.attempt else []
    facts += [f"tenant {escape_markdown(state.tenant)}"] if state.tenant else []
    decisions = "\n".join(map(_retell, state.decisions))
    return f"**{_phase(state)}** — {escape_markdown(explain_due(state))}\n\n{', '.join(facts)}\n\n{decisions}".rstrip()


def escape_markdown(text: str) -> str:
    """Escape text to one line that Markdown shows unchanged; the Web UI would render angle brackets as HTML."""
    return text.translate(_MARKUP)


def _retell(decision: Decision) -> str:
    reason = f" ({escape_markdown(decision.reason)})" if decision.reason else ""
    at = format_moment(decision.at)
    due = format_moment(decision.due_at)
    return f"- {at} version {decision.version}: {decision.what}{reason}, then due {due}"


def describe_overview(summary: PackSummary) -> dict[str, Any]:
    """Answer a pack's `overview` query; `waits_until` is when the pack must wake, in seconds since the epoch."""
    return {
        "asleep": summary.asleep,
        "running": summary.running,
        "paused": summary.held - summary.parked,
        "parked": summary.parked,
        "next_due": None if math.isinf(summary.due_at) else format_moment(summary.due_at),
        "waits_until": None if math.isinf(summary.wake_at) else summary.wake_at,
    }


def describe_pack(kind: str, lane: str, summary: PackSummary) -> str:
    """Write the Web UI's current details of a pack."""
    counts = describe_overview(summary)
    next_due = counts.pop("next_due")
    _ = counts.pop("waits_until")
    words = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    total = f"**{sum(counts.values()):,} messages of kind {kind}**: {words}"
    return f"{total}\n\nlane {lane}, next due {next_due or 'never'}"


def describe_gates(closings: Mapping[str, GateClosure]) -> str:
    """Write the Web UI's current details of the gates: which are closed, until when and why."""
    lines = [
        f"- **{escape_markdown(name)}** opens "
        + ("when somebody opens it" if closing.lasts_for_good else format_moment(closing.opens_at))
        + (f": {escape_markdown(closing.reason)}" if closing.reason else "")
        for name, closing in sorted(closings.items())
    ]
    return "\n".join([f"**closed gates**: {len(lines)}", "", *lines]) if lines else "all gates are open"


def describe_layout(layout: Mapping[str, Any], wanted: int) -> str:
    """Write the Web UI's current details of a kind's layout."""
    coalesce = format_seconds(layout["coalesce"])
    packs = f"**{layout['packs']:,} packs** of about {layout['size']:,} messages"
    growing = f", growing to {wanted:,}" if wanted > layout["packs"] else ""
    return f"{packs}{growing}, lane {layout['lane']}, coalescing {coalesce}"


def describe_capacity(by_worker: Mapping[str, WorkerCapacity]) -> str:
    """Write the Web UI's current details of a lane's capacity."""
    maximum = sum(measured.per_second for measured in by_worker.values())
    return (
        f"**{maximum:,.1f} messages a second** at most, by what {len(by_worker)} worker processes have measured so far"
    )


def page_of(states: Iterable[MessageState], request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a pack's `page` query: the messages that match a filter of state, lane and due time, and their count.

    A request `has_payloads` to get them too; a pack holds no more bytes than an answer may have.
    """
    after = request.get("after", "")
    limit = request.get("limit", PAGE_MAX)
    kept = select_listed(states, request)
    page = itertools.islice((state for state in kept if state.id > after), min(limit, PAGE_MAX))
    return {"count": len(kept), "messages": describe_listed(page, request)}


def select_listed(states: Iterable[MessageState], request: Mapping[str, Any]) -> list[MessageState]:
    """Select the messages that match the filter of a request to the query `page`."""
    return [state for state in states if _is_kept(state, request)]


def describe_listed(states: Iterable[MessageState], request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give messages as the answer to a request to the query `page` has them."""
    listed = (*_LISTED, "payload") if request.get("has_payloads") else _LISTED
    return [{name: getattr(state, name) for name in listed} | {"state": state.phase} for state in states]


def count_due(states: Iterable[MessageState], edges: Sequence[float]) -> dict[str, list[int]]:
    """Answer a pack's `due` query: by lane, how many waiting messages are due before each of the rising `edges`."""
    counts: dict[str, list[int]] = {}
    for state in states:
        if not state.is_held and (first := bisect.bisect_right(edges, state.due_at)) < len(edges):
            counts.setdefault(state.lane, [0] * len(edges))[first] += 1
    return {lane: list(itertools.accumulate(new)) for lane, new in counts.items()}


def _is_kept(state: MessageState, request: Mapping[str, Any]) -> bool:
    due_before = request.get("due_before")
    return (
        request.get("state") in (None, state.phase)
        and request.get("lane") in (None, state.lane)
        and (due_before is None or (state.due_at < due_before and not state.is_held))
    )


def _find_cause(state: MessageState) -> tuple[Decision, ...]:
    """Find the decision that set the present due time: the first of the latest ones that share this time."""
    cause: tuple[Decision, ...] = ()
    for decision in reversed(state.decisions):
        if decision.due_at != state.due_at:
            break
        if decision.what not in ("ignored", "pause", "resume"):
            cause = (decision,)
    return cause


def _because(decisions: Sequence[Decision]) -> str:
    return "".join(f" since {d.what} ({d.reason})" if d.reason else f" since {d.what}" for d in decisions)


def _phase(state: MessageState) -> str:
    return "running" if state.is_running and not state.ended else state.phase
