"""The state of a message: its wire form over versions, its phases, its memory."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.message import DECISIONS_KEPT, REASON_MAX, Decision, MessageState, Outcome, clip_reason

SLEEPER = MessageState("feed", "a:b", "short", 1_795_291_200.5, 1_795_287_600.0)
FULL = MessageState(
    kind="feed",
    id="a:b",
    lane="long",
    due_at=1_795_291_200.5,
    earliest_at=1_795_287_600.0,
    payload={"url": "https://example.org", "n": [1, None]},
    version=7,
    attempt=2,
    priority=1,
    tenant="acme",
    correlation_id="c-1",
    is_paused=True,
    parked_reason="gone",
    parked_at=1_795_280_000.0,
    ended="done",
    result={"ok": True},
    revision=3,
    sources={"feeds/0": 41, "feeds/1": 7},
    traced="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    decisions=(Decision(1_795_280_000.0, 6, "again", 1_795_291_200.5, "changed"), Decision(1.0, 7, "pause", 2.0)),
    is_running=True,
    asked_due_at=1_795_280_001.0,
    asked_stop="enough",
    is_revised=True,
)
GOLDEN_WIRE: dict[str, Any] = {
    "kind": "feed",
    "id": "a:b",
    "lane": "long",
    "due_at": 1795291200.5,
    "earliest_at": 1795287600.0,
    "payload": {"url": "https://example.org", "n": [1, None]},
    "version": 7,
    "attempt": 2,
    "priority": 1,
    "tenant": "acme",
    "correlation_id": "c-1",
    "is_paused": True,
    "parked_reason": "gone",
    "parked_at": 1795280000.0,
    "ended": "done",
    "result": {"ok": True},
    "revision": 3,
    "sources": {"feeds/0": 41, "feeds/1": 7},
    "traced": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "decisions": [[1795280000.0, 6, "again", 1795291200.5, "changed"], [1.0, 7, "pause", 2.0, ""]],
    "is_running": True,
    "asked_due_at": 1795280001.0,
    "asked_stop": "enough",
    "is_revised": True,
}
LEAST_WIRE: dict[str, Any] = {
    "kind": "feed",
    "id": "a:b",
    "lane": "short",
    "due_at": 1795291200.5,
    "earliest_at": 1795287600.0,
}


@pytest.mark.parametrize(("state", "wire"), [(SLEEPER, LEAST_WIRE), (FULL, GOLDEN_WIRE)])
def test_the_wire_form_of_sleeping_messages_never_changes(state: MessageState, wire: dict[str, Any]) -> None:
    """Messages asleep for months wake up under newer code: the recorded form loads, and is still what is written."""
    assert MessageState.load(wire) == state
    assert state.dump() == wire
    assert MessageState.load(json.loads(json.dumps(state.dump()))) == state


@pytest.mark.parametrize("missing", sorted(set(GOLDEN_WIRE) - set(LEAST_WIRE)))
def test_a_wire_form_without_an_optional_key_loads_with_its_default(missing: str) -> None:
    """Older code wrote fewer keys."""
    older = {key: value for key, value in GOLDEN_WIRE.items() if key != missing}

    assert MessageState.load(older) == FULL._replace(**{missing: getattr(SLEEPER, missing)})


def test_a_wire_form_with_unknown_keys_loads_without_them() -> None:
    """Newer code writes more keys, and more about a decision; this code reads what it knows."""
    newer = {
        **LEAST_WIRE,
        "mood": "sleepy",
        "decisions": [[1.0, 2, "again", 3.0, "because", "newer"], [1.0, 2, "pause", 3.0]],
    }
    decisions = (Decision(1.0, 2, "again", 3.0, "because"), Decision(1.0, 2, "pause", 3.0))

    assert MessageState.load(newer) == SLEEPER._replace(decisions=decisions)


@pytest.mark.parametrize("missing", sorted(LEAST_WIRE))
def test_a_wire_form_without_an_identifying_field_is_a_type_error(missing: str) -> None:
    """Input that is no message state is refused by the name of what it lacks."""
    wire = {key: value for key, value in GOLDEN_WIRE.items() if key != missing}

    with pytest.raises(TypeError, match=f"'{missing}'"):
        MessageState.load(wire)


@pytest.mark.parametrize(
    ("outcome", "wire"),
    [
        (Outcome("again", after=0.0), {"verdict": "again", "after": 0.0}),
        (
            Outcome("again", at=5.0, earliest_at=4.0, tolerance=0.0, payload=[0], is_payload_changed=True, lane="long"),
            {
                "verdict": "again",
                "at": 5.0,
                "earliest_at": 4.0,
                "tolerance": 0.0,
                "payload": [0],
                "is_payload_changed": True,
                "lane": "long",
            },
        ),
        (Outcome("again", payload=None, is_payload_changed=True), {"verdict": "again", "is_payload_changed": True}),
        (Outcome("done", result=False), {"verdict": "done", "result": False}),
        (
            Outcome("failed", "boom", max_attempts=9, backoff=1.0, backoff_max=2.0, cycles_per_run=1, index_after=0.0),
            {
                "verdict": "failed",
                "reason": "boom",
                "max_attempts": 9,
                "backoff": 1.0,
                "backoff_max": 2.0,
                "cycles_per_run": 1,
                "index_after": 0.0,
            },
        ),
    ],
)
def test_the_wire_form_of_outcomes_never_changes(outcome: Outcome, wire: dict[str, Any]) -> None:
    """A worker of one version reports to workflows of another: only what differs from the defaults travels."""
    assert outcome.dump() == wire
    assert Outcome.load({**wire, "unknown": 1}) == outcome


@pytest.mark.parametrize(
    ("change", "phase", "is_held"),
    [
        ({}, "active", False),
        ({"is_running": True}, "active", False),
        ({"is_paused": True}, "paused", True),
        ({"parked_reason": "gone"}, "parked", True),
        ({"parked_reason": "gone", "is_paused": True}, "parked", True),
        ({"ended": "done"}, "done", False),
        ({"ended": "stopped", "is_paused": True}, "stopped", True),
    ],
)
def test_the_phase_is_the_word_people_search_for(change: dict[str, Any], phase: str, is_held: bool) -> None:  # noqa: FBT001 — a column of the table
    """The end outranks being parked, which outranks a pause."""
    state = SLEEPER._replace(**change)

    assert state.phase == phase
    assert state.is_held == is_held


def test_a_message_names_its_workflow() -> None:
    """`kind:id`."""
    assert SLEEPER.workflow_id == "feed:a:b"


def test_the_last_five_decisions_are_remembered() -> None:
    """Each says when to the millisecond, on which version, what, and when the message was due after it."""
    state = SLEEPER._replace(version=3)
    for number in range(7):
        state = state.remember(number + 0.12345, f"what {number}", f"why {number}")

    assert len(state.decisions) == DECISIONS_KEPT
    assert state.decisions[0] == Decision(2.123, 3, "what 2", SLEEPER.due_at, "why 2")
    assert state.decisions[-1] == Decision(6.123, 3, "what 6", SLEEPER.due_at, "why 6")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("changed, 200", "changed, 200"),
        ("  two\nlines\t and \u2028 more ", "two lines and more"),
        ("x" * 1000, "x" * REASON_MAX),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        ("\u20ac" * 400, "\u20ac" * REASON_MAX),
    ],
)
def test_a_reason_becomes_one_short_line(text: str, expected: str) -> None:
    """Reasons are written by anybody and read in lists, so they are cut, joined and made encodable."""
    assert clip_reason(text) == expected


@settings(database=None)
@given(
    payload=st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
    counts=st.tuples(st.integers(0), st.integers(0), st.integers(0)),
    sources=st.dictionaries(st.text(), st.integers(0)),
    due_at=st.floats(0, 4e9),
    asked=st.none() | st.floats(0, 4e9),
)
def test_any_state_survives_its_wire_form(
    payload: Any, counts: tuple[int, int, int], sources: dict[str, int], due_at: float, asked: float | None
) -> None:
    """Falsy payloads and zeros are not taken for what was left out."""
    version, attempt, revision = counts
    state = SLEEPER._replace(
        payload=payload, version=version, attempt=attempt, revision=revision, sources=sources, due_at=due_at
    )
    state = state._replace(asked_due_at=asked, asked_stop="" if asked else None)
    loaded = MessageState.load(json.loads(json.dumps(state.dump())))

    assert loaded == state
    assert type(loaded.payload) is type(payload)
