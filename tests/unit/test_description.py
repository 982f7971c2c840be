"""What people read about a message: why it is due, where it stands, what was decided."""

from typing import Any

import pytest

from shared.message import Decision, MessageState
from workflows.description import describe_decisions, describe_markdown, describe_status, explain_due

NOON = 1_795_262_400.0
EVENING = NOON + 8 * 3600
SLEEPER = MessageState("feed", "a", "short", EVENING, NOON)
AGAIN = Decision(NOON, 3, "again", EVENING, "changed, 200")
STATUS: dict[str, Any] = {
    "kind": "feed",
    "id": "a",
    "state": "active",
    "phase": "active",
    "parked_reason": "",
    "parked_at": 0.0,
    "lane": "short",
    "version": 4,
    "attempt": 1,
    "priority": 3,
    "tenant": "acme",
    "due_at": "2026-11-21 20:00:00 UTC",
    "due_at_epoch": EVENING,
    "earliest_at": "2026-11-21 12:00:00 UTC",
    "why": "due 2026-11-21 20:00:00 UTC since again (changed, 200)",
    "payload": {"n": 1},
    "revision": 2,
    "sources": {"t/0": 5},
    "correlation_id": "",
    "result": None,
    "waiting_signals": 0,
}


def decided(what: str, due_at: float = EVENING, reason: str = "") -> Decision:
    """Make a remembered decision."""
    return Decision(NOON + 1, 3, what, due_at, reason)


@pytest.mark.parametrize(
    ("change", "decisions", "expected"),
    [
        ({}, (), "due 2026-11-21 20:00:00 UTC"),
        ({}, (AGAIN,), "due 2026-11-21 20:00:00 UTC since again (changed, 200)"),
        ({}, (AGAIN, decided("ignored", reason="Reschedule: nonsense")), "due 2026-11-21 20:00:00 UTC since again (changed, 200)"),
        ({}, (AGAIN, decided("reprioritize", reason="priority 1")), "due 2026-11-21 20:00:00 UTC since again (changed, 200)"),
        ({}, (AGAIN, decided("pause"), decided("resume")), "due 2026-11-21 20:00:00 UTC since again (changed, 200)"),
        ({}, (decided("pause"), decided("resume")), "due 2026-11-21 20:00:00 UTC"),
        ({}, (decided("again", NOON), decided("reschedule")), "due 2026-11-21 20:00:00 UTC since reschedule"),
        ({}, (decided("again", NOON),), "due 2026-11-21 20:00:00 UTC"),
        ({"is_paused": True}, (AGAIN, decided("pause", reason="ask Eva"), decided("revise")),
         "paused since pause (ask Eva); would be due 2026-11-21 20:00:00 UTC"),
        ({"is_paused": True}, (AGAIN,), "paused; would be due 2026-11-21 20:00:00 UTC"),
        ({"parked_reason": "attempt 5 of 5: boom", "is_paused": True}, (AGAIN,), "parked: attempt 5 of 5: boom"),
        ({"ended": "stopped"}, (AGAIN, decided("stop", reason="not needed")), "stopped since stop (not needed)"),
        ({"ended": "done"}, (), "done"),
    ],
)  # fmt: skip
def test_why_a_message_is_due_is_one_true_sentence(
    change: dict[str, Any], decisions: tuple[Decision, ...], expected: str
) -> None:
    """The sentence names the decision that set the due time, not the latest one that left it alone."""
    assert explain_due(SLEEPER._replace(decisions=decisions, **change)) == expected


def test_the_status_says_all_that_a_person_may_want_to_know() -> None:
    """Moments are text, and seconds beside them for tools."""
    state = SLEEPER._replace(
        payload={"n": 1},
        version=4,
        attempt=1,
        tenant="acme",
        revision=2,
        sources={"t/0": 5},
        decisions=(AGAIN,),
    )

    assert describe_status(state) == STATUS


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "active"),
        ({"is_running": True}, "running"),
        ({"is_running": True, "is_paused": True}, "running"),
        ({"is_paused": True}, "paused"),
        ({"parked_reason": "gone"}, "parked"),
        ({"ended": "done"}, "done"),
        ({"ended": "stopped"}, "stopped"),
    ],
)
def test_the_state_is_one_word(change: dict[str, Any], expected: str) -> None:
    """A handler at work shows, whatever waits for its outcome."""
    state = SLEEPER._replace(**change)

    assert describe_status(state)["state"] == expected
    assert describe_markdown(state).startswith(f"**{expected}** ")


def test_the_last_decisions_are_told_oldest_first() -> None:
    """When, on which version, what, why, and when the message was due after it."""
    state = SLEEPER._replace(decisions=(AGAIN, decided("run_now", NOON, "asked")))

    assert describe_decisions(state) == {
        "why": "due 2026-11-21 20:00:00 UTC",
        "decisions": [
            {
                "at": "2026-11-21 12:00:00 UTC",
                "version": 3,
                "what": "again",
                "reason": "changed, 200",
                "due_at": "2026-11-21 20:00:00 UTC",
            },
            {
                "at": "2026-11-21 12:00:01 UTC",
                "version": 3,
                "what": "run_now",
                "reason": "asked",
                "due_at": "2026-11-21 12:00:00 UTC",
            },
        ],
    }


def test_the_details_in_the_web_ui_fit_three_lines() -> None:
    """The word in bold, the reason, then version and priority."""
    state = SLEEPER._replace(version=4, priority=1, decisions=(AGAIN,))

    assert describe_markdown(state) == (
        "**active** \u2014 due 2026-11-21 20:00:00 UTC since again (changed, 200)\n\nversion 4, priority 1"
    )
