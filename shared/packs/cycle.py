"""A cycle of a packed message, from its entry to what the cycle changes of it, without a full state where possible."""

from shared.messages.decision import begin, decide, plan_return, plan_wait
from shared.messages.json_value import copy_json
from shared.messages.message import DECISIONS_KEPT, HandlerCall, Outcome
from shared.messages.placement import PackSpread
from shared.packs.entry import (
    DECISIONS,
    DUE,
    ID,
    LATE,
    OTHERS,
    PAYLOAD,
    ROUTINE,
    VERSION,
    Entry,
    to_change,
    to_entry,
    to_state,
)

_USUAL_CALL = tuple(HandlerCall._field_defaults.values())
"""The fields of a call that an entry without other fields leaves at their defaults."""


def to_call(entry: Entry, kind: str, lane: str, tries_before: int) -> HandlerCall:
    """Give the call of a message's handler, with a copy of its payload, because handlers may change it in place.

    `lane` is the pack's own, `tries_before` are those of the same batch.
    """
    payload = copy_json(entry[PAYLOAD])
    if len(entry) > OTHERS:
        state = to_state(entry, kind, lane)._replace(payload=payload)
        return HandlerCall.of(state, state.attempt + 1 + tries_before)
    moment = entry[DUE] / 1000
    return HandlerCall._make((kind, entry[ID], lane, entry[VERSION], 1 + tries_before, payload, moment, *_USUAL_CALL))


def apply_outcome(entry: Entry, outcome: Outcome, now: float, *, kind: str, lane: str, spread: PackSpread) -> Entry:
    """Give what a cycle changes of an entry, as `decide` does for a full state; `lane` is the pack's own.

    Only how much later the message may run is less, by `PackSpread.limit`.
    """
    decisions = entry[DECISIONS]
    if outcome.verdict == "gated" and len(entry) == OTHERS and not outcome.turn:
        return _wait_at_gate(entry, outcome, now, spread)
    is_unusual = outcome.is_payload_changed or outcome.lane or outcome.traced or outcome.started_at
    is_usual = outcome.verdict == "again" and not is_unusual
    if is_usual and len(entry) == OTHERS and (not decisions or (len(decisions) == 1 and decisions[0][2] in ROUTINE)):
        due, earliest, latest, reason = plan_return(outcome, now, spread)
        decision = [due - round(round(now, 3) * 1000), 0, "again", 0, reason]
        return [due, due - earliest, spread.limit(latest - due), [decision]]
    after = to_entry(decide(begin(to_state(entry, kind, lane)), outcome, now, spread=spread), lane)
    after[LATE] = spread.limit(after[LATE])
    return to_change(entry, after)


def _wait_at_gate(entry: Entry, outcome: Outcome, now: float, spread: PackSpread) -> Entry:
    """Give the entry of a message that waits at a gate; a gate may be closed for long, so only its last look is kept.

    A closed gate may send a million messages away, each several times.
    """
    due, latest = (round(moment * 1000) for moment in plan_wait(outcome, now, spread))
    later = due - entry[DUE]
    decisions = [
        [at + later, back, what, then + later, *others]
        for at, back, what, then, *others in entry[DECISIONS][1 - DECISIONS_KEPT :]
        if what not in ROUTINE and what != "gated"
    ]
    last = [due - round(round(now, 3) * 1000), 0, "gated", 0, outcome.reason]
    return [entry[ID], due, 0, spread.limit(latest - due), entry[VERSION], entry[PAYLOAD], [*decisions, last]]
