"""Pack entries: a message as a compact array says all that the message is, over versions of this code."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.lanes import LANES
from shared.messages.decision import begin, decide
from shared.messages.json_value import encode_json
from shared.messages.message import DECISIONS_KEPT, Decision, HandlerCall, MessageState, Outcome
from shared.messages.placement import PackSpread
from shared.packs.cycle import apply_outcome, to_call
from shared.packs.entry import (
    DECISIONS,
    LATE,
    OTHERS,
    PAYLOAD,
    Entry,
    apply_change,
    is_held,
    is_parked,
    lane_of,
    measure,
    priority_of,
    shorten,
    to_change,
    to_entry,
    to_state,
)

DUE_AT = 1_795_291_200.5
ROUTINE = ("started", "again", "asked")
PARKED = "attempt 5 of 5: RuntimeError: gone"
GOLDEN: list[tuple[Entry, MessageState]] = [
    (["a", 1795291200500, 0, 0, 0, None, []], MessageState("feed", "a", "short", DUE_AT, DUE_AT)),
    (
        ["a", 1795291200500, 3600000, 900000, 7, {"n": 1}, [[60000, 1, "again", 0, "changed"]], {"lane": "long"}],
        MessageState(
            "feed",
            "a",
            "long",
            DUE_AT,
            DUE_AT - 3600,
            DUE_AT + 900,
            {"n": 1},
            7,
            decisions=(Decision(DUE_AT - 60, 6, "again", DUE_AT, "changed"),),
        ),
    ),
]

SPREAD = PackSpread(0.3, 5.0)
LIMITING = PackSpread(0.95, 5.0)
GATED = Outcome("gated", "gate mail is closed until it is opened", after=60.0, tolerance=15.0)
AGAIN = Outcome("again", after=60.0, tolerance=10.0, reason="same as before")

moments = st.integers(1_600_000_000_000, 4_000_000_000_000).map(lambda milliseconds: milliseconds / 1000)
payloads: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
decisions = st.builds(
    Decision,
    at=moments,
    version=st.integers(0, 50),
    what=st.sampled_from([*ROUTINE, "failed", "pause", "ignored", "revise"]),
    due_at=moments,
    reason=st.text(max_size=5),
)


def message_state(**given: Any) -> MessageState:
    """Make a state; of a named tuple hypothesis would fill in every field."""
    return MessageState(**given)


states = st.builds(
    message_state,
    kind=st.just("feed"),
    id=st.text(min_size=1, max_size=10),
    lane=st.sampled_from(list(LANES)),
    due_at=moments,
    earliest_at=moments,
    latest_at=st.just(0.0) | moments,
    payload=payloads,
    version=st.integers(0, 50),
    attempt=st.integers(0, 5),
    is_tried=st.booleans(),
    priority=st.integers(1, 5),
    tenant=st.text(max_size=3),
    correlation_id=st.text(max_size=3),
    is_paused=st.booleans(),
    parked_reason=st.just("") | st.text(max_size=5),
    parked_at=st.just(0.0) | moments,
    ended=st.sampled_from(["", "done", "stopped"]),
    result=payloads,
    revision=st.integers(0, 5),
    traced=st.sampled_from(["", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]),
    sources=st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
    decisions=st.lists(decisions, max_size=DECISIONS_KEPT).map(tuple),
)


def without_routine(state: MessageState) -> MessageState:
    """Give what a pack keeps: no decisions that are a matter of course but the last, no latest moment before due."""
    *earlier, last = state.decisions or (None,)
    kept = tuple(d for d in (*(e for e in earlier if e and e.what not in ROUTINE), last) if d is not None)
    return state._replace(decisions=kept, latest_at=state.latest_at if state.latest_at > state.due_at else 0.0)


@settings(max_examples=200, database=None)
@given(states)
def test_a_message_survives_its_entry(state: MessageState) -> None:
    """Through JSON and back it is the same message; only routine decisions before the last are left out, on purpose."""
    entry = json.loads(json.dumps(to_entry(state, "short")))

    assert to_state(entry, "feed", "short") == without_routine(state)
    assert to_entry(to_state(entry, "feed", "short"), "short") == entry
    assert (is_held(entry), is_parked(entry)) == (state.is_held, state.is_parked)
    assert (priority_of(entry), lane_of(entry, "short")) == (state.priority, state.lane)


@pytest.mark.parametrize(("entry", "state"), GOLDEN)
def test_the_entries_of_sleeping_messages_never_change(entry: Entry, state: MessageState) -> None:
    """Packs asleep for months wake up under newer code: recorded entries load, and are still what is written."""
    assert to_state(entry, "feed", "short") == state
    assert to_entry(state, "short") == entry


def test_an_entry_with_more_than_is_known_loads_without_it() -> None:
    """Newer code adds fields, columns and parts of decisions; this code reads what it knows."""
    entry, state = GOLDEN[1]
    newer = [*entry[:OTHERS], {**entry[OTHERS], "mood": "sleepy"}, "another column"]
    newer[DECISIONS] = [[*decision, "newer"] for decision in entry[DECISIONS]]

    assert to_state(newer, "feed", "short") == state


def test_a_small_message_takes_little_room() -> None:
    """A payload of 60 bytes after a month of visits: less than 200 bytes in all."""
    decided = Decision(DUE_AT - 21_600, 119, "again", DUE_AT, "not modified")
    state = GOLDEN[1][1]._replace(lane="short", id="feed-12345678", version=120, decisions=(decided,) * DECISIONS_KEPT)
    state = state._replace(payload={"url": "https://example.org/" + "x" * 30})

    assert measure(state.payload) == 60
    assert measure(to_entry(state, "short")) < 200


def test_a_shortened_entry_keeps_the_message_and_says_why_once() -> None:
    """Where room is short the last decision stays, and the reason of a parked message stands in one place."""
    failed = Decision(DUE_AT, 7, "failed", DUE_AT, "x" * 300)
    asleep = GOLDEN[1][1]._replace(decisions=(failed,) * DECISIONS_KEPT)
    parked = asleep._replace(parked_reason=PARKED, decisions=(failed, failed._replace(what="parked", reason=PARKED)))
    one, other = (to_state(shorten(to_entry(state, "short")), "feed", "short") for state in (asleep, parked))

    assert one == asleep._replace(decisions=(failed._replace(reason="x" * 200),))
    assert other == parked._replace(decisions=(failed._replace(what="parked", reason=""),))
    assert shorten(to_entry(GOLDEN[0][1], "short")) == GOLDEN[0][0]


def test_a_latest_moment_before_the_due_time_is_no_room() -> None:
    """The columns count forward from the due time: nothing there can make a pack wake too soon."""
    early = GOLDEN[1][1]._replace(latest_at=DUE_AT - 5)

    assert to_entry(early, "short")[LATE] == 0


@pytest.mark.parametrize(
    "outcome",
    [
        AGAIN,
        Outcome("again", after=60.0, payload={"n": 2}, is_payload_changed=True),
        Outcome("again", after=60.0, lane="medium"),
        Outcome("failed", "once", max_attempts=3, backoff=1.0, backoff_max=60.0),
        Outcome("reject", "unfit"),
        Outcome("done", result=7),
        Outcome("retry_after", "busy", after=5.0),
    ],
    ids=lambda outcome: outcome.verdict,
)
@pytest.mark.parametrize("state", [state for _, state in GOLDEN], ids=["usual", "unusual"])
def test_a_change_makes_of_an_entry_what_a_cycle_did(state: MessageState, outcome: Outcome) -> None:
    """Whatever the cycle came to; where it was a usual one in a few numbers."""
    before = to_entry(state, "short")
    after = to_entry(decide(begin(to_state(before, "feed", "short")), outcome, DUE_AT), "short")
    change = json.loads(encode_json(to_change(before, after)))

    assert apply_change(before, change) == after
    assert (len(change) < len(after)) == (outcome == AGAIN and len(before) == OTHERS)


seconds = st.none() | st.sampled_from([-1.0, 0.0, 0.4, 1e12]) | st.floats(0, 1e6)
again_fields = st.fixed_dictionaries(
    {
        **dict.fromkeys(("after", "earliest", "tolerance"), seconds),
        **dict.fromkeys(("at", "earliest_at"), st.none() | st.none() | moments),
        "reason": st.text(max_size=5),
        "lane": st.sampled_from(["", "", "", "medium", "express"]),
        "traced": st.sampled_from(["", "", "00-1"]),
    }
)
outcomes = st.one_of(
    again_fields.map(lambda given: Outcome.load({"verdict": "again", **given})),
    payloads.map(lambda payload: Outcome("again", after=60.0, payload=payload, is_payload_changed=True)),
    st.sampled_from([Outcome("failed", "once"), Outcome("done", result=7), Outcome("reject"), GATED]),
)
usual = st.builds(
    message_state,
    kind=st.just("feed"),
    id=st.text(min_size=1, max_size=10),
    lane=st.just("short"),
    due_at=moments,
    earliest_at=moments,
    latest_at=st.just(0.0) | moments,
    payload=payloads,
    version=st.integers(0, 50),
    decisions=st.lists(decisions, max_size=2).map(tuple),
)


@settings(max_examples=300, database=None)
@given(usual | states, outcomes, moments | st.floats(1.6e9, 4e9), st.sampled_from([SPREAD, LIMITING]))
def test_a_cycle_of_an_entry_is_that_of_its_message(
    state: MessageState, outcome: Outcome, now: float, spread: PackSpread
) -> None:
    """The call and the change that are made of the entry itself are those of the full state and its decision.

    Only the wait that is allowed is shorter, where the pack would use more than nine tenths of it.
    """
    before = to_entry(state, "short")
    full = to_state(before, "feed", "short")
    decided = to_entry(decide(begin(full), outcome, now, spread=spread), "short")
    allowed = decided[LATE]
    decided[LATE] = spread.limit(decided[LATE])
    change = apply_outcome(before, outcome, now, kind="feed", lane="short", spread=spread)

    assert to_call(before, "feed", "short", 2) == HandlerCall.of(full, full.attempt + 3)
    assert change == to_change(before, decided)
    assert apply_change(before, change) == decided
    assert decided[LATE] == allowed or decided[LATE] * spread.patience <= 0.9 * allowed


def test_a_message_that_looks_at_a_closed_gate_ever_again_does_not_grow() -> None:
    """Only its last look is remembered, beside what else has happened to it, with the moments that they had."""
    failed = Decision(DUE_AT - 90, 7, "failed", DUE_AT, "attempt 1 of 5: ValueError")
    before = to_entry(GOLDEN[1][1]._replace(lane="short", decisions=(failed,)), "short")
    looked = before
    sizes = list[int]()
    for n in range(8):
        looked = apply_outcome(looked, GATED, DUE_AT + 60 * n, kind="feed", lane="short", spread=SPREAD)
        sizes.append(measure(looked))
    state = to_state(looked, "feed", "short")

    assert max(sizes) - sizes[0] < 10, "the figures of moments that are longer ago take more digits"
    assert [decision.what for decision in state.decisions] == ["failed", "gated"]
    assert state.decisions[0] == failed
    assert DUE_AT + 480 <= state.due_at <= DUE_AT + 495


def test_a_payload_that_its_handler_changes_in_place_is_the_handlers_own() -> None:
    """The pack's payload changes only if the handler returns another one, and then by what it returns."""
    before = to_entry(GOLDEN[1][1]._replace(lane="short"), "short")
    called = to_call(before, "feed", "short", 0)
    called.payload["n"] += 1
    kept, failed, changed = (
        apply_change(before, apply_outcome(before, outcome, DUE_AT, kind="feed", lane="short", spread=SPREAD))
        for outcome in (AGAIN, Outcome("failed"), AGAIN._replace(payload=called.payload, is_payload_changed=True))
    )

    assert [kept[PAYLOAD], failed[PAYLOAD], changed[PAYLOAD]] == [{"n": 1}, {"n": 1}, {"n": 2}]
