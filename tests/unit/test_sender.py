"""The sender: what no message may have is refused before it is sent, and pending effects are found for each signal."""

import pytest

from shared.errors import InvalidEnvelope
from shared.messages.signals import Pause, Reprioritize, Reschedule, Resume, Revise, RunNow, Signal, Stop
from shared.settings import Settings
from starter.steering.sender import check_signal, find_obstacle

WRONG: list[tuple[Signal, str]] = [
    (Revise("x" * 4095), "payload: is 4097 bytes of JSON, the limit is 4096"),
    (Revise({1, 2}), "payload: "),
    (Revise(None, lane="fast"), "lane: is 'fast'; use one of short, medium, long"),
    (Revise(None, priority=0), "priority: is 0; give a whole number from 1"),
    (Reprioritize(9), "priority: is 9; give a whole number from 1"),
    (Reprioritize(1, "20:00"), "due_at: is '20:00', not RFC 3339 with an offset"),
    (Reschedule("2026-11-21T20:00:00"), "due_at: is '2026-11-21T20:00:00', which has no offset"),
    (Reschedule("9999-01-01T00:00:00Z"), "due_at: is 9999-01-01T00:00:00[+]00:00, more than ten years ahead"),
]


@pytest.mark.parametrize(("signal", "sentence"), WRONG, ids=repr)
def test_a_signal_for_what_no_message_may_have_is_refused(signal: Signal, sentence: str) -> None:
    """By the rules and in the words of the envelope: the workflow could only ignore it, where nobody looks."""
    with pytest.raises(InvalidEnvelope, match=f"^{sentence}"):
        check_signal(signal, Settings())


def test_a_signal_that_asks_for_nothing_wrong_passes() -> None:
    """A moment that is past is one: the message is due at once."""
    fine: list[Signal] = [RunNow(), Pause(), Resume(), Stop(), Revise({"n": 1}, lane="long", priority=5)]
    for signal in (*fine, Reprioritize(1), Reschedule("2020-01-01T00:00:00+01:00")):
        check_signal(signal, Settings())


MOMENT = "2026-11-21T20:00:00Z"
BLOCKING: list[tuple[Signal, str]] = [
    (RunNow(), "paused"),
    (Reschedule(MOMENT), "paused"),
    (Reprioritize(1, MOMENT), "paused"),
    (Reprioritize(1), ""),
    (Resume(), "parked"),
    (Revise(None), "parked"),
    (Pause(), ""),
    (Stop(), ""),
]


@pytest.mark.parametrize(("signal", "state"), BLOCKING, ids=repr)
def test_each_signal_has_at_most_one_state_that_keeps_its_message_from_running(signal: Signal, state: str) -> None:
    """And where it has one, the sentence names that state and the verb that ends it."""
    verb = {"paused": "resume", "parked": "now"}.get(state)
    found, sentence = find_obstacle(signal)

    assert found == state
    if verb is not None:
        sentence = sentence.format(name="feed:1")
        assert sentence.startswith((f"feed:1 is {state} ", f"feed:1 is {state},"))
        assert f"'dormice {verb} feed:1'" in sentence
