"""What people read about a message: why it is due, where it stands, what was decided."""

from typing import Any

import pytest

from shared.keepers.capacity import WorkerCapacity
from shared.keepers.gates import GateClosure
from shared.messages.message import Decision, MessageState
from workflows.description import (
    describe_capacity,
    describe_decisions,
    describe_gates,
    describe_layout,
    describe_markdown,
    describe_pack,
    describe_status,
    escape_markdown,
    explain_due,
    page_of,
)
from workflows.packs.summary import PackSummary

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
    "expires_at": None,
    "why": "due 2026-11-21 20:00:00 UTC since again (changed, 200)",
    "payload": {"n": 1},
    "revision": 2,
    "sources": {"t/0": 5},
    "correlation_id": "",
    "result": None,
}


def decided(what: str, due_at: float = EVENING, reason: str = "") -> Decision:
    """Make a remembered decision."""
    return Decision(NOON + 1, 3, what, due_at, reason)


SINCE_AGAIN = "due 2026-11-21 20:00:00 UTC since again (changed, 200)"


@pytest.mark.parametrize(
    ("change", "decisions", "expected"),
    [
        ({}, (), "due 2026-11-21 20:00:00 UTC"),
        ({}, (AGAIN,), SINCE_AGAIN),
        ({}, (AGAIN, decided("ignored", reason="Reschedule: nonsense")), SINCE_AGAIN),
        ({}, (AGAIN, decided("reprioritize", reason="priority 1")), SINCE_AGAIN),
        ({}, (AGAIN, decided("pause"), decided("resume")), SINCE_AGAIN),
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

    assert describe_status(state) == {**STATUS, "decisions": describe_decisions(state)["decisions"]}


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


def test_the_details_in_the_web_ui_tell_state_reason_place_and_the_last_decisions() -> None:
    """In Markdown, the last decision last; failed attempts and a tenant only where there are some."""
    state = SLEEPER._replace(version=4, priority=1, decisions=(AGAIN, decided("run_now", NOON)))

    assert describe_markdown(state) == (
        "**active** \u2014 due 2026-11-21 20:00:00 UTC\n\nlane short, priority 1, version 4\n\n"
        "- 2026-11-21 12:00:00 UTC version 3: again (changed, 200), then due 2026-11-21 20:00:00 UTC\n"
        "- 2026-11-21 12:00:01 UTC version 3: run_now, then due 2026-11-21 12:00:00 UTC"
    )
    assert describe_markdown(SLEEPER._replace(attempt=2, tenant="a_b")).endswith(
        "lane short, priority 3, version 0, failed attempts 2, tenant a\\_b"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<html>502</html> & more", "\\<html\\>502\\</html\\> \\& more"),
        ("*a* [b](c) `d` _e_ ~f~ |g|\\", "\\*a\\* \\[b\\](c) \\`d\\` \\_e\\_ \\~f\\~ \\|g\\|\\\\"),
        ("retry_after\n# no heading", "retry\\_after # no heading"),
    ],
)
def test_what_handlers_say_is_shown_as_they_said_it(text: str, expected: str) -> None:
    """No reason turns into markup, and none ends its line."""
    assert escape_markdown(text) == expected


def test_a_page_has_payloads_only_if_asked_for_them() -> None:
    """Lists need none, and most of a pack's bytes are payloads."""
    state = MessageState("feed", "a", "short", EVENING, EVENING, payload={"n": 1})
    (plain,) = page_of([state], {})["messages"]
    (full,) = page_of([state], {"has_payloads": True})["messages"]
    assert full == plain | {"payload": {"n": 1}}


def test_the_workflows_beside_messages_describe_themselves() -> None:
    """A pack, the gates, a layout and a lane's capacity say in a line or two what they hold."""
    outlook = PackSummary(EVENING, NOON, asleep=97, held=2, parked=1, wake_at=0, running=1)
    closings = {
        "host:a": GateClosure(NOON, EVENING, "429 <slow>"),
        "bank": GateClosure(NOON, NOON + 10 * 366 * 86400),
    }

    assert describe_pack("price", "short", outlook) == (
        "**100 messages of kind price**: 97 asleep, 1 running, 1 paused, 1 parked\n\n"
        "lane short, next due 2026-11-21 20:00:00 UTC"
    )
    assert describe_gates(closings) == (
        "**closed gates**: 2\n\n- **bank** opens when somebody opens it\n"
        "- **host:a** opens 2026-11-21 20:00:00 UTC: 429 \\<slow\\>"
    )
    assert describe_gates({}) == "all gates are open"
    layout = {"packs": 2000, "size": 1000, "lane": "short", "coalesce": 300.0}
    assert describe_layout(layout, 0) == "**2,000 packs** of about 1,000 messages, lane short, coalescing 5 min"
    assert describe_layout(layout, 2250) == (
        "**2,000 packs** of about 1,000 messages, growing to 2,250, lane short, coalescing 5 min"
    )
    assert describe_capacity({"a": WorkerCapacity(10.5, NOON), "b": WorkerCapacity(20, NOON)}) == (
        "**30.5 messages a second** at most, by what 2 worker processes have measured so far"
    )
