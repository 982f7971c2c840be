"""Waiting at a gate: how long, and how often one that waits looks again."""

from datetime import UTC, datetime, timedelta

import pytest

from activities.admission.gates import wait_at
from shared.keepers.gates import GateClosure, pick_closed, read_closings
from shared.messages.timespan import HORIZON

NOW = 1_800_000_000.0
FOR_GOOD = 10 * 366 * 86400


@pytest.mark.parametrize(
    ("closed_for", "opens_in", "after", "spread"),
    [
        (0, 30, 30, 7.5),
        (10, 20, 20, 5),
        (0, 3600, 60, 15),  # a person may open it
        (600, 3600, 600, 150),
        (7200, 3600, 3600, 900),
        (86400, FOR_GOOD, 86400, 900),
    ],
)
def test_a_message_waits_until_the_gate_opens_and_looks_ever_less_often(
    closed_for: float, opens_in: float, after: float, spread: float
) -> None:
    """After as long again as the gate has been closed, at least a minute, and never later than when it opens."""
    outcome = wait_at("mail", GateClosure(NOW - closed_for, NOW + opens_in, "busy"), NOW)

    assert (outcome.verdict, outcome.after, outcome.tolerance) == ("gated", after, spread)


@pytest.mark.parametrize(
    ("opens_in", "reason"),
    [
        (90, "gate mail is closed for another 1 min 30 s: busy"),
        (FOR_GOOD, "gate mail is closed until it is opened: busy"),
    ],
)
def test_a_message_says_what_it_waits_for(opens_in: float, reason: str) -> None:
    """The gate, how long still, and why it was closed."""
    assert wait_at("mail", GateClosure(NOW, NOW + opens_in, "busy"), NOW).reason == reason


@pytest.mark.parametrize(("lasts", "is_for_good"), [(HORIZON, True), (timedelta(days=3600), False)])
def test_a_gate_closed_for_good_stays_so_when_workers_hear_of_it_late(lasts: timedelta, *, is_for_good: bool) -> None:
    """It counts from when a worker gets it, which may be a minute or a week later."""
    closing = GateClosure.lasting(lasts)
    heard = closing._replace(closed_at=closing.closed_at + timedelta(days=7).total_seconds())

    assert (closing.lasts_for_good, heard.lasts_for_good) == (is_for_good, is_for_good)


@pytest.mark.parametrize(
    ("away", "flaw"),
    [
        (timedelta(days=-300), "has passed"),
        (timedelta(0), "is less than a second away"),
        (timedelta(days=4000), "is more than ten years away"),
    ],
)
def test_a_person_closes_a_gate_until_a_moment_ahead(away: timedelta, flaw: str) -> None:
    """Any other moment is refused, whoever asks; without one the gate is closed until it is opened."""
    now = datetime.fromtimestamp(NOW, UTC)

    with pytest.raises(ValueError, match=f"^{flaw}; correct it, or leave it out to close the gate until it is opened$"):
        GateClosure.until(now + away, now=now)
    assert GateClosure.until(now + timedelta(hours=1), "busy", now) == (NOW, NOW + 3600, "busy")
    assert GateClosure.until(None, now=now).lasts_for_good


def test_what_was_kept_is_read_by_older_and_newer_code() -> None:
    """A closing with more to it, or without a reason, is still one; what has opened is left out."""
    read = read_closings({"a": [1.0, 9.0], "b": [1.0, 5.0, "busy", "of a later version"]})

    assert read == {"a": GateClosure(1.0, 9.0), "b": GateClosure(1.0, 5.0, "busy")}
    assert pick_closed(read, 5.0) == {"a": GateClosure(1.0, 9.0)}
