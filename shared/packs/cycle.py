"""A cycle of a packed message, from its entry to what the cycle changes of it, without a full state where possible."""

from typing import Any

from shared.messages.decision import Spread, begin, decide, plan_return, plan_wait
from shared.messages.json_value import copy_json
from shared.messages.message import DECISIONS_KEPT, HandlerCall, Outcome
from shared.messages.placement import PackSpread
from shared.packs.entry import (
    DECISIONS,
    DUE,
    EARLY,
    ID,
    LATE,
    OTHERS,
    PAYLOAD,
    ROUTINE,
    VERSION,
    Entry,
    apply_change,
    to_change,
    to_entry,
    to_state,
)

STILL_IN_FLIGHT = 0
"""What stands in a batch's answer for a message whose handler still works; None: handed back, it was not called."""

Result = Entry | dict[str, Any] | int | None
"""What a batch answers for a message: what its cycle changes of the entry, or the outcome that the pack decides on."""

_DECIDED = frozenset({"again", "gated"})
"""Verdicts that the worker decides on; of all others the pack gets the outcome, for they may end or park a message."""

_DEFAULT_CALL = tuple(HandlerCall._field_defaults.values())
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
    return HandlerCall._make((kind, entry[ID], lane, entry[VERSION], 1 + tries_before, payload, moment, *_DEFAULT_CALL))


def to_input(entry: Entry) -> Entry:
    """Give what a worker needs of an entry: not its last decision, if the next one will replace it."""
    decisions = entry[DECISIONS]
    if len(decisions) != 1 or decisions[0][2] not in ROUTINE:
        return entry
    return [*entry[:DECISIONS], [], *entry[OTHERS:]]


def to_result(
    entry: Entry, outcome: Outcome, now: float, *, kind: str, lane: str, spread: PackSpread
) -> Entry | dict[str, Any]:
    """Give what a batch answers for a message whose cycle ended at `now`; `lane` is the pack's own."""
    if outcome.verdict in _DECIDED and not outcome.turn:
        return apply_outcome(entry, outcome, now, kind=kind, lane=lane, spread=spread)
    return outcome._replace(ended_at=now).dump()


def read_result(entry: Entry, result: Entry | dict[str, Any], lane: str, within: PackSpread) -> tuple[Outcome, Spread]:
    """Give the outcome of a result, and the spread with which it leads to the same due time as the worker's decision.

    It is for a message that signals have changed while its handler was at work.
    """
    if isinstance(result, dict):
        return Outcome.load(result), within

    after = apply_change(entry, result)
    others: dict[str, Any] = after[OTHERS] if len(after) > OTHERS else {}
    back, _, what, _, reason = after[DECISIONS][-1]
    # half a millisecond more, because the sum of two moments is rounded down
    tolerance = (after[LATE] + 0.5) / 1000 if after[LATE] else 0.0
    outcome = Outcome(
        what,
        reason,
        tolerance=tolerance,
        lane=others.get("lane", lane),
        traced=others.get("traced", ""),
        started_at=others.get("started_at", 0.0),
        ended_at=(after[DUE] - back) / 1000,
    )
    if what == "gated":
        return outcome._replace(after=back / 1000), _spread_nowhere
    return outcome._replace(
        at=after[DUE] / 1000,
        earliest_at=(after[DUE] - after[EARLY]) / 1000,
        payload=after[PAYLOAD],
        is_payload_changed=after[PAYLOAD] != entry[PAYLOAD],
    ), _spread_nowhere


def _spread_nowhere(_: float) -> float:
    return 0.0


def apply_outcome(entry: Entry, outcome: Outcome, now: float, *, kind: str, lane: str, spread: PackSpread) -> Entry:
    """Give what a cycle changes of an entry, as `decide` does for a full state; `lane` is the pack's own.

    Only how much later the message may run is less, by `PackSpread.limit`.
    """
    decisions = entry[DECISIONS]
    if outcome.verdict == "gated" and len(entry) == OTHERS and not outcome.turn:
        return _wait_at_gate(entry, outcome, now, spread)

    is_special = outcome.is_payload_changed or outcome.lane or outcome.traced or outcome.started_at
    is_ordinary = outcome.verdict == "again" and not is_special
    if is_ordinary and len(entry) == OTHERS and (not decisions or (len(decisions) == 1 and decisions[0][2] in ROUTINE)):
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
