"""The decision: the one pure function that moves a message from state to state, whatever its encoding.

For an ordinary `Again` of a packed message `shared.packs.cycle` does the same without a full state; a property test
holds both equal.

No clock, no randomness and no Temporal in here, so a workflow can replay it, and a pack can hold many messages at once.
"""

from collections.abc import Callable, Mapping
from typing import Any

from shared.lanes import LANES
from shared.messages import signals
from shared.messages.message import DECISIONS_KEPT, NO_TURN, Decision, MessageState, Outcome, Turn, clip_reason
from shared.messages.placement import unit_hash
from shared.messages.signals import to_epoch
from shared.messages.timespan import HORIZON, ceil_ms, floor_ms, format_moment, format_seconds

MIN_DELAY = 1.0  # seconds; the server starts at most one run of a workflow a second
MAX_DELAY = HORIZON.total_seconds()
TOLERANCE_SHARE = 0.05
TOLERANCE_MAX = 900.0
EARLIEST_SHARE = 0.5
SOURCES_KEPT = 100  # of how many sources a message remembers the newest offset; a key comes from one partition
REQUESTS_KEPT = 5  # how many idempotency keys of requests a message remembers
Spread = Callable[[float], float]  # maps a tolerance to the offset in it at which a message is due, both in seconds


def begin(state: MessageState) -> MessageState:
    """Mark that a handler is now at work, so that signals wait for its outcome where they must."""
    return state._replace(is_running=True, asked_due_at=None, asked_stop=None, is_revised=False)


def decide(
    state: MessageState,
    event: Outcome | signals.Signal | signals.UnreadableSignal,
    now: float,
    *,
    spread: Spread | None = None,
) -> MessageState:
    """Give the state after `event` at `now` (seconds since the epoch).

    An `Outcome` ends a cycle that `begin` opened; signals that came meanwhile are applied after it. A signal that makes
    no sense in the state, or can't be read, changes only the list of remembered decisions. An ended message changes no
    more, unless a newer record starts it again, because its sender was told that the record has been taken.

    `spread` gives the offset in the tolerance at which a message comes back; without it a hash of the id does.

    A message that expires is due at that moment at the latest; what a worker then does is its `on_expiry`, not a cycle.
    """
    if state.ended and not _is_newer_record(state, event):
        return state
    if isinstance(event, signals.UnreadableSignal):
        return _remember(state, now, "ignored", f"{event.name}: {event.problem}")

    if isinstance(event, Outcome):
        if state.turn:
            state = _spend_turn(state, event)
        if event.started_at:
            state = state._replace(started_at=event.started_at)
        after = _end_cycle(_apply_outcome(state, event, now, spread), now)
    else:
        request = signals.name_request(event.idempotency_key) if event.idempotency_key else ""
        if request in state.sources:
            return state
        try:
            after = _apply(_begin_anew(state, now), event, now)
        except (ValueError, TypeError, AttributeError) as exc:
            return _remember(state, now, "ignored", f"{type(event).__name__}: {exc}")
        if request:
            sources = merge_sources(after.sources, {request: signals.find_fingerprint(event)})
            after = after._replace(sources=sources)

    return _bound_by_expiry(after, now) if after.expires_at else after


def _bound_by_expiry(state: MessageState, now: float) -> MessageState:
    """Let a message be due when it expires, if it would sleep for longer; one that is late keeps its due time."""
    if state.ended or not now < state.expires_at < state.due_at:
        return state
    expires_at = state.expires_at
    *others, last = state.decisions or (Decision(now, state.version, "again", 0.0),)
    decisions = (*others, last._replace(due_at=expires_at))
    earliest_at = min(state.earliest_at, expires_at)
    return state._replace(due_at=expires_at, earliest_at=earliest_at, latest_at=0.0, decisions=decisions)


def find_offset(workflow_id: str, tolerance: float, spread: Spread | None) -> float:
    """Return the offset in the tolerance (seconds) at which a message is due: from `spread`, or a hash of its id."""
    if spread is not None:
        return spread(tolerance)
    return unit_hash(workflow_id) * tolerance if tolerance else 0.0


def merge_sources(known: Mapping[str, int], newer: Mapping[str, int]) -> Mapping[str, int]:
    """Give the newest offset of each source, newer ones last; of requests, each a source of its own, the last few."""
    older = {source: offset for source, offset in known.items() if source not in newer}
    merged = {**older, **newer}
    forgotten = [source for source in merged if source.startswith(signals.REQUEST)][:-REQUESTS_KEPT]
    forgotten += [source for source in merged if not source.startswith(signals.REQUEST)][:-SOURCES_KEPT]
    return {source: offset for source, offset in merged.items() if source not in forgotten} if forgotten else merged


def is_repeated(known: Mapping[str, int], source: str, offset: int) -> bool:
    """Return whether a message has seen a record at least as new of this source, or a request with this key."""
    newest = known.get(source, -1)
    return newest >= 0 if source.startswith(signals.REQUEST) else newest >= offset


def is_key_reused(known: Mapping[str, int], source: str, offset: int) -> bool:
    """Return whether a request has the key of an earlier one, and another body."""
    return source.startswith(signals.REQUEST) and known.get(source, offset) != offset


def next_wake(state: MessageState) -> float | None:
    """Return when the message wants to run, or None while it is held or after it has ended."""
    return None if state.is_held or state.ended else state.due_at


def _apply_outcome(state: MessageState, outcome: Outcome, now: float, spread: Spread | None) -> MessageState:
    if outcome.verdict == "again":
        return _come_back(state, outcome, now, spread)
    if outcome.verdict == "gated":
        return _wait_at_gate(state, outcome, now, spread)
    if outcome.traced:
        state = state._replace(traced=outcome.traced)

    reason = clip_reason(outcome.reason)
    if state.is_revised and outcome.verdict != "retry_after":
        # no handler has seen the new payload yet, because it came during this cycle
        revised = _due_now(_next_version(state), now)
        return revised.remember(now, "again", f"revised while its handler ran, which came to: {outcome.verdict}")

    state = _skip_version(state) if state.is_revised else state._replace(is_tried=True)
    match outcome.verdict:
        case "done":
            after = _next_version(state)._replace(ended="done", result=outcome.result, is_expired=outcome.is_expired)
            return after.remember(now, outcome.word, reason)
        case "reject":
            return _park(state, reason, now)
        case "failed":
            return _retry_or_park(state, outcome, now)
        case "retry_after":
            delay, note = _clamp(outcome.after or 0.0)
            return _due(state, now + delay, now + delay).remember(now, "retry_after", _join(reason, note))
        case "handed_back":
            return _due_now(state, now).remember(now, "handed_back", reason)


def plan_return(outcome: Outcome, now: float, spread: Spread, expires_at: float = 0.0) -> tuple[int, int, int, str]:
    """Give when a message comes back after an `again`: its due, earliest and latest moment, and the decision's reason.

    The moments are in milliseconds since the epoch; the latest is 0 if there is no tolerance. The spread leads no
    message beyond its expiry.
    """
    # moments are kept in milliseconds, so what is beyond them is only noise of the difference
    requested = outcome.after if outcome.at is None else round(outcome.at - now, 3)
    delay, note = _clamp(requested or 0.0)
    tolerance = min(delay * TOLERANCE_SHARE, TOLERANCE_MAX) if outcome.tolerance is None else outcome.tolerance
    tolerance = min(max(tolerance, 0.0), MAX_DELAY)
    if now + delay < expires_at:
        tolerance = min(tolerance, expires_at - now - delay)

    # `now + (at - now)` is seldom `at`: what was asked for exactly is kept exactly
    soonest = now + delay if outcome.at is None or delay != requested else outcome.at
    due_at = soonest + spread(tolerance)
    earliest_at = now + delay * EARLIEST_SHARE

    if outcome.earliest_at is not None:
        earliest_at = outcome.earliest_at
    elif outcome.earliest is not None:
        earliest_at = now + outcome.earliest

    earliest = ceil_ms(min(max(earliest_at, now), due_at))
    latest = floor_ms(soonest + tolerance) if tolerance else 0
    return ceil_ms(due_at), earliest, latest, _join(clip_reason(outcome.reason), note)


def _come_back(state: MessageState, outcome: Outcome, now: float, spread: Spread | None) -> MessageState:
    spread = spread or (lambda tolerance: find_offset(state.workflow_id, tolerance, None))
    due, earliest, latest, reason = plan_return(outcome, now, spread, state.expires_at)
    keeps_payload = state.is_revised or not outcome.is_payload_changed
    version = state.version + 1
    decision = Decision(round(now, 3), version, "again", due / 1000, reason)

    lane = outcome.lane if outcome.lane in LANES and not state.is_revised else state.lane
    payload = state.payload if keeps_payload else outcome.payload
    return state._replace(  # one copy for all changes, because nearly every cycle ends here
        version=version,
        attempt=0,
        is_tried=False,
        is_running=False,
        due_at=due / 1000,
        earliest_at=earliest / 1000,
        latest_at=latest / 1000,
        lane=lane,
        payload=payload,
        traced=outcome.traced,
        decisions=(*state.decisions[1 - DECISIONS_KEPT :], decision),
    )


def _spend_turn(state: MessageState, outcome: Outcome) -> MessageState:
    """Forget the turn of a message that may have been called; one that was handed back keeps its position in line."""
    is_kept = outcome.verdict == "gated" or (outcome.verdict == "handed_back" and not Turn.load(state.turn).is_slot)
    return state if is_kept else state._replace(turn=NO_TURN)


def _wait_at_gate(state: MessageState, outcome: Outcome, now: float, spread: Spread | None) -> MessageState:
    state = _skip_version(state) if state.is_revised else state  # the previous payload may have been tried
    spread = spread or (lambda tolerance: find_offset(state.workflow_id, tolerance, None))
    due, latest = plan_wait(outcome, now, spread)
    if outcome.turn:  # of a line's many waits, the last one is enough
        last = state.decisions[-1:]
        kept = state.decisions[:-1] if last and last[0].what == "gated" else state.decisions
        state = state._replace(turn=outcome.turn, decisions=kept)
    waiting = state._replace(due_at=due, earliest_at=due, latest_at=latest)
    return waiting.remember(now, "gated", clip_reason(outcome.reason))


def plan_wait(outcome: Outcome, now: float, spread: Spread) -> tuple[float, float]:
    """Give when one at a closed gate, or in line, looks again: due and latest moment, in seconds since the epoch."""
    soonest = now + _clamp(outcome.after or 0.0)[0]
    tolerance = outcome.tolerance or 0.0
    if outcome.turn:  # a slot is a moment, which a batch may have reached before its last message has ended
        soonest = max(now, outcome.at or soonest)
    return _ceil(soonest + spread(tolerance)), _floor(soonest + tolerance)


def _retry_or_park(state: MessageState, outcome: Outcome, now: float) -> MessageState:
    attempt = state.attempt + 1
    maximum = outcome.max_attempts
    of_maximum = f" of {maximum}" if maximum else ""
    reason = clip_reason(f"attempt {attempt}{of_maximum}: {outcome.reason}")
    if maximum and attempt >= maximum:
        return _park(state._replace(attempt=attempt), reason, now)

    ceiling = min(outcome.backoff_max, outcome.backoff * 2.0 ** min(attempt - 1, 60))
    # "equal jitter": half of the backoff is fixed, half varies, here by a hash so that a replay agrees
    delay = ceiling / 2 + ceiling / 2 * unit_hash(f"{state.workflow_id}:{state.version}:{attempt}")
    due_at = now + delay
    return _due(state, due_at, due_at, now + ceiling)._replace(attempt=attempt).remember(now, "failed", reason)


def _park(state: MessageState, reason: str, now: float) -> MessageState:
    parked = state._replace(parked_reason=reason or "no reason given", parked_at=round(now, 3))
    return parked.remember(now, "parked", reason)


def _next_version(state: MessageState) -> MessageState:
    return state._replace(version=state.version + 1, attempt=0, is_tried=False)


def _skip_version(state: MessageState) -> MessageState:
    """Begin the next version without a decided cycle, which is counted where a handler keeps the age."""
    after = _next_version(state)
    return after._replace(skipped=state.skipped + 1) if state.started_at else after


def _end_cycle(state: MessageState, now: float) -> MessageState:
    asked_due_at = state.asked_due_at
    asked_stop = state.asked_stop
    if state.is_running or state.is_revised or asked_due_at is not None or asked_stop is not None:
        state = state._replace(is_running=False, asked_due_at=None, asked_stop=None, is_revised=False)
    if state.ended:
        return state
    if asked_stop is not None:
        return _stop(state, asked_stop, now)
    if asked_due_at is not None:
        return _request_due(state, (asked_due_at, ""), now, "asked", "asked for while it ran")

    return state


def _apply(state: MessageState, signal: signals.Signal, now: float) -> MessageState:
    match signal:
        case signals.RunNow():
            return _request_due(state, (_floor(now), ""), now, "run_now", signal.reason)
        case signals.Reschedule():
            bounded = _bound(signal.due_at, now)
            return _request_due(state, bounded, now, "reschedule", clip_reason(signal.reason))
        case signals.Reprioritize():
            _check_priority(signal.priority)
            bounded = None if signal.due_at is None else _bound(signal.due_at, now)
            reason = _join(f"priority {signal.priority}", clip_reason(signal.reason))
            return _request_due(state._replace(priority=signal.priority), bounded, now, "reprioritize", reason)
        case signals.Revise():
            return _revise(state, signal, now)
        case signals.Pause():
            return _remember(state._replace(is_paused=True), now, "pause", signal.reason)
        case signals.Resume():
            return _remember(state._replace(is_paused=False), now, "resume", signal.reason)
        case signals.Stop():
            return _request_stop(state, signal, now)
        case signals.PullForward():
            return _pull_forward(state, signal, now)


def _request_due(
    state: MessageState, bounded: tuple[float, str] | None, now: float, what: str, reason: str
) -> MessageState:
    """Let a message be due at what `_bound` gave for a signal, and remember the signal."""
    if bounded is None:
        return state.remember(now, what, reason)
    due_at, note = bounded
    state = state._replace(asked_due_at=due_at) if state.is_running else _due(_unpark(state), due_at, due_at)
    return _remember(state, now, what, _join(reason, note))


def _bound(moment: str, now: float) -> tuple[float, str]:
    """Give the due time for a requested moment, and a note if it had to be another one."""
    try:
        due_at = to_epoch(moment)
    except ValueError as exc:
        raise ValueError(f"due_at {exc}") from exc
    if due_at <= now:
        return _floor(now), "in the past: due now"
    if due_at > now + MAX_DELAY:
        return _ceil(now + MAX_DELAY), "cut to ten years"

    return _ceil(due_at), ""


def _check_priority(priority: Any) -> None:
    if type(priority) is not int or not 1 <= priority <= 5:
        raise ValueError(f"priority {priority!r} is not between 1 and 5")


def _check_conditions(state: MessageState, signal: signals.Revise) -> None:
    if signal.if_version not in (None, state.version):
        raise ValueError(f"its version is {state.version}, not {signal.if_version}")
    due_at = state.due_at if state.asked_due_at is None else state.asked_due_at
    if signal.if_due_before is not None and due_at >= to_epoch(signal.if_due_before):
        raise ValueError(f"it is due {format_moment(due_at)}, not before {signal.if_due_before}")


def _revise(state: MessageState, signal: signals.Revise, now: float) -> MessageState:
    if _is_redelivered(state, signal):
        return state
    if signal.lane and signal.lane not in LANES:
        raise ValueError(f"there is no lane {signal.lane!r}")
    if signal.priority is not None:
        _check_priority(signal.priority)

    _check_conditions(state, signal)
    bounded = None if signal.due_at is None else _bound(signal.due_at, now)
    # an idempotency key stands for one payload: a new payload for a tried version makes the next version
    is_next = state.is_tried and not state.is_running
    priority = state.priority if signal.priority is None else signal.priority
    trace = state.trace if signal.trace is None else signal.trace
    expires_at = state.expires_at if signal.expires_at is None else _bound(signal.expires_at, now)[0]
    asked_stop = None if signal.source else state.asked_stop
    changed = (_skip_version(state) if is_next else state)._replace(
        payload=signal.payload,
        lane=signal.lane or state.lane,
        priority=priority,
        revision=state.revision + 1,
        is_revised=state.is_running,
        sources=_note_source(state, signal),
        trace=trace,
        expires_at=expires_at,
        # a newer record starts the message again, so it cancels a pending stop, whenever it arrives
        asked_stop=asked_stop,
    )

    return _request_due(changed, bounded, now, "revise", clip_reason(signal.reason))


def _request_stop(state: MessageState, signal: signals.Stop, now: float) -> MessageState:
    if _is_redelivered(state, signal):
        return state
    state = state._replace(sources=_note_source(state, signal))
    reason = clip_reason(signal.reason)
    return state._replace(asked_stop=reason) if state.is_running else _stop(state, reason, now)


def _is_newer_record(state: MessageState, event: Any) -> bool:
    if not isinstance(event, signals.Revise) or event.source == "" or _is_redelivered(state, event):
        return False
    return event.if_version is None and event.if_due_before is None  # what has ended meets no condition


def _begin_anew(state: MessageState, now: float) -> MessageState:
    if not state.ended:
        return state
    begun = state._replace(ended="", result=None, is_paused=False, parked_reason="", parked_at=0.0, attempt=0)
    skipped = state.version if state.started_at else 0
    begun = begun._replace(started_at=0.0, skipped=skipped, expires_at=0.0, is_expired=False)
    return _due_now(begun, now)


def _is_redelivered(state: MessageState, signal: signals.Revise | signals.Stop) -> bool:
    return signal.source != "" and is_repeated(state.sources, signal.source, signal.offset)


def _note_source(state: MessageState, signal: signals.Revise | signals.Stop) -> Mapping[str, int]:
    return merge_sources(state.sources, {signal.source: signal.offset}) if signal.source else state.sources


def _pull_forward(state: MessageState, signal: signals.PullForward, now: float) -> MessageState:
    is_same = abs(to_epoch(signal.expected_due_at) - state.due_at) < 0.5  # the index keeps milliseconds at best
    if state.is_running or state.is_held or not is_same or now < state.earliest_at or state.due_at <= now:
        return state
    return _remember(_due_now(state, now), now, "pull_forward", signal.reason)


def _remember(state: MessageState, now: float, what: str, reason: str) -> MessageState:
    return state.remember(now, what, clip_reason(reason))


def _stop(state: MessageState, reason: str, now: float) -> MessageState:
    return state._replace(ended="stopped").remember(now, "stop", reason)


def _unpark(state: MessageState) -> MessageState:
    return state._replace(parked_reason="", parked_at=0.0, attempt=0) if state.is_parked else state


def _due(state: MessageState, due_at: float, earliest_at: float, latest_at: float = 0.0) -> MessageState:
    # rounded up: a millisecond late does no harm, a fraction of one early would break a promise
    return state._replace(due_at=_ceil(due_at), earliest_at=_ceil(earliest_at), latest_at=_floor(latest_at))


def _due_now(state: MessageState, now: float) -> MessageState:
    # rounded down: a due time a fraction of a millisecond ahead would cost a timer
    return state._replace(due_at=_floor(now), earliest_at=_floor(now), latest_at=0.0)


def _ceil(moment: float) -> float:
    return ceil_ms(moment) / 1000


def _floor(moment: float) -> float:
    return floor_ms(moment) / 1000


def _clamp(delay: float) -> tuple[float, str]:
    if delay < MIN_DELAY:
        return MIN_DELAY, "" if delay == 0 else f"delay of {delay:.0f} s raised to {MIN_DELAY:.0f} s"
    if delay > MAX_DELAY:
        return MAX_DELAY, f"delay of {format_seconds(delay)} cut to {format_seconds(MAX_DELAY)}"
    return delay, ""


def _join(one: str, other: str) -> str:
    return f"{one}; {other}" if one and other else one or other
