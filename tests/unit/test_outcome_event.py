"""The outcomes topic's event: what it says of a cycle agrees with the decision on it."""

import json
from typing import Any

import pytest

from shared.messages.message import HandlerCall, Outcome
from shared.messages.outcome_event import to_event

CALL = HandlerCall("feed", "a", "short", version=3, attempt=2, payload={"n": 1}, due_at=1000.0, priority=1, tenant="t")
OUTCOMES: list[tuple[Outcome, str, str | None]] = [
    (Outcome("again", after=60.0, tolerance=0.0, ended_at=1010.5), "active", "1970-01-01T00:17:50.500Z"),
    (Outcome("again", after=60.0, tolerance=0.0, lane="long", ended_at=1010.5), "active", "1970-01-01T00:17:50.500Z"),
    (Outcome("again", after=-5.0, tolerance=0.0, ended_at=1010.0), "active", "1970-01-01T00:16:51.000Z"),
    (Outcome("done", ended_at=1010.5), "done", None),
    (Outcome("reject", reason="unfit", ended_at=1010.5), "parked", None),
    (Outcome("failed", reason="x", max_attempts=2, ended_at=1010.5), "parked", None),
    (Outcome("retry_after", after=30.0, ended_at=1010.5), "active", "1970-01-01T00:17:20.500Z"),
]


@pytest.mark.parametrize(("outcome", "state", "next_due_at"), OUTCOMES)
def test_an_event_says_where_the_message_stands_after_its_cycle(
    outcome: Outcome, state: str, next_due_at: str | None
) -> None:
    """What is held or ended has no next due time."""
    event = to_event(CALL, outcome, 1010.0)

    assert (event["outcome"], event["state"], event["next_due_at"]) == (outcome.verdict, state, next_due_at)
    assert event["next_lane"] == (outcome.lane or "short")


def test_an_event_is_plain_json_with_the_cycles_own_times() -> None:
    """Moments are RFC 3339 in UTC, durations seconds, and the payload stays out."""
    event: dict[str, Any] = json.loads(json.dumps(to_event(CALL, OUTCOMES[0][0], 1010.25)))

    assert event == {
        "schema_version": 1,
        "kind": "feed",
        "id": "a",
        "version": 3,
        "attempt": 2,
        "outcome": "again",
        "state": "active",
        "reason": "",
        "lane": "short",
        "priority": 1,
        "tenant": "t",
        "due_at": "1970-01-01T00:16:40.000Z",
        "started_at": "1970-01-01T00:16:50.250Z",
        "duration_seconds": 0.25,
        "lateness_seconds": 10.25,
        "next_due_at": "1970-01-01T00:17:50.500Z",
        "next_lane": "short",
        "correlation_id": "",
    }


def test_a_cycle_that_idle_capacity_ran_early_is_not_late() -> None:
    """Lateness and duration are never negative, whatever the clocks say."""
    event = to_event(CALL, Outcome("done", ended_at=900.0), 950.0)

    assert (event["lateness_seconds"], event["duration_seconds"]) == (0.0, 0.0)
