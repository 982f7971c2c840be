"""The rules by which a message moves on, one by one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from shared.messages.decision import begin, decide, is_key_reused, next_wake
from shared.messages.message import REASON_MAX, MessageState, Outcome
from shared.messages.signals import (
    REQUEST,
    Pause,
    PullForward,
    Reprioritize,
    Reschedule,
    Resume,
    Revise,
    RunNow,
    Signal,
    Stop,
    find_fingerprint,
    name_request,
)

NOW = 1_795_262_400.123
LATER = NOW + 7200
DUE = 1_795_266_000.123
SPREAD = 0.5408583227383682
"""Where in its tolerance the message feed:a lies."""
TEN_YEARS = 3653 * 86_400
TEN_THOUSAND_YEARS = 10_000 * 365 * 86_400.0

ASLEEP = MessageState(
    "feed", "a", "short", DUE, NOW - 60, payload={"n": 1}, version=3, attempt=1, is_tried=True, sources={"t/0": 10}
)
RUNNING = begin(ASLEEP)
PARKED = ASLEEP._replace(parked_reason="gone", parked_at=NOW - 60, attempt=5)
PAUSED = ASLEEP._replace(is_paused=True)
REVISED = {"payload": 2, "revision": 1}
NEXT = {"version": 4, "attempt": 0, "is_tried": False}
UNPARKED = {"parked_reason": "", "parked_at": 0.0, "attempt": 0}


def write(epoch: float) -> str:
    """Write a moment as signals carry it."""
    return datetime.fromtimestamp(epoch, UTC).isoformat()


def due(epoch: Any) -> dict[str, Any]:
    """Say that the message is due at that moment and not before."""
    return {"due_at": epoch, "earliest_at": epoch}


def test_the_last_five_requests_are_remembered() -> None:
    """A repeated one does nothing, whatever its body; records of topics are remembered for ever."""
    state = ASLEEP
    for number in range(7):
        state = decide(state, Revise(number, source=f"{REQUEST}{number}", offset=0), NOW)
    again = decide(state, Revise("again", source=f"{REQUEST}2", offset=9), NOW)
    late = decide(state, Revise("late", source=f"{REQUEST}1", offset=0), NOW)

    assert state.sources == {"t/0": 10, **{f"{REQUEST}{number}": 0 for number in range(2, 7)}}
    assert (again.payload, again.revision, late.payload) == (6, 7, "late")


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (RunNow("a", idempotency_key="k"), Pause("a", idempotency_key="k")),
        (Reschedule(write(LATER), idempotency_key="k"), Reschedule(write(NOW + 60), idempotency_key="k")),
        (Revise(1, idempotency_key="k"), Revise(2, idempotency_key="k")),
        (Stop("a", idempotency_key="k"), Stop("b", idempotency_key="k")),
    ],
    ids=["run_now", "reschedule", "revise", "stop"],
)
def test_a_signal_with_an_idempotency_key_takes_effect_once(first: Signal, other: Signal) -> None:
    """Neither a repetition nor another signal with its key changes anything, and the message tells them apart."""
    after = decide(ASLEEP, first, NOW)
    source = name_request("k")
    repeated = find_fingerprint(first)
    reused = find_fingerprint(other)

    assert after != ASLEEP
    assert after.sources == {**ASLEEP.sources, source: repeated}
    assert decide(after, first, NOW + 1) is after
    assert decide(after, other, NOW + 1) is after
    assert not is_key_reused(after.sources, source, repeated)
    assert is_key_reused(after.sources, source, reused)
    assert not is_key_reused(ASLEEP.sources, source, reused)


def test_a_condition_does_not_wake_what_has_ended() -> None:
    """Any other upsert begins it anew."""
    ended = ASLEEP._replace(ended="stopped")

    assert decide(ended, Revise(2, source=f"{REQUEST}a", offset=0, if_version=3), NOW) is ended
    assert decide(ended, Revise(2, source=f"{REQUEST}a", offset=0, if_due_before=write(LATER)), NOW) is ended
    assert decide(ended, Revise(2, source=f"{REQUEST}a", offset=0), NOW).ended == ""


def finish(outcome: Outcome, *signals: Signal, state: MessageState = ASLEEP) -> MessageState:
    """Run one cycle during which signals come."""
    state = begin(state)
    for signal in signals:
        state = decide(state, signal, NOW)
    return decide(state, outcome, NOW)


def changes(before: MessageState, after: MessageState) -> dict[str, Any]:
    """Give the fields that differ, without the memory of decisions."""
    names = [name for name in MessageState._fields if name != "decisions"]
    return {name: getattr(after, name) for name in names if getattr(after, name) != getattr(before, name)}


@pytest.mark.parametrize(
    ("moment", "made", "expected"),
    [
        (write(NOW - 5), "in the past: due now", NOW),
        ("0001-01-01T00:00:00+14:00", "in the past: due now", NOW),
        (write(LATER), "", LATER),
        ("9999-12-31T23:59:59-14:00", "cut to ten years", NOW + TEN_YEARS),
    ],
)
def test_what_was_made_of_a_moment_is_remembered(moment: str, made: str, expected: float) -> None:
    """For all signals that name a moment, after their reason; a past moment becomes the time of the signal."""
    for signal in (
        Reschedule(moment, "asked"),
        Reprioritize(1, moment, "asked"),
        Revise(2, due_at=moment, reason="asked"),
    ):
        after = decide(ASLEEP, signal, NOW)
        reason = "asked" if not isinstance(signal, Reprioritize) else "priority 1; asked"

        assert (after.due_at, after.decisions[-1].reason) == (expected, f"{reason}; {made}" if made else reason)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"after": 3600.0}, 3600 + 180 * SPREAD),
        ({"after": 18_000.0}, 18_000 + 900 * SPREAD),
        ({"after": 86_400.0}, 86_400 + 900 * SPREAD),
        ({"after": 3600.0, "tolerance": 0.0}, 3600),
        ({"after": 3600.0, "tolerance": 600.0}, 3600 + 600 * SPREAD),
        ({"after": 3600.0, "tolerance": -5.0}, 3600),
        ({"after": 3600.0, "tolerance": TEN_THOUSAND_YEARS}, 3600 + TEN_YEARS * SPREAD),
        ({"at": NOW + 3600}, 3600 + 180 * SPREAD),
        ({"at": NOW + 3600, "tolerance": 0.0}, 3600),
        ({"at": NOW - 86_400}, 1 + 0.05 * SPREAD),
        ({"at": NOW + TEN_THOUSAND_YEARS, "tolerance": 0.0}, TEN_YEARS),
        ({"after": 0.25, "tolerance": 0.0}, 1),
        ({"after": 0.0}, 1 + 0.05 * SPREAD),
        ({"after": -5.0}, 1 + 0.05 * SPREAD),
        ({"after": TEN_THOUSAND_YEARS}, TEN_YEARS + 900 * SPREAD),
        ({}, 1 + 0.05 * SPREAD),
    ],
)
def test_again_is_due_after_its_delay_spread_within_its_tolerance(asked: Any, expected: float) -> None:
    """5 % of the delay, at most 15 minutes, unless told otherwise; delays lie between a second and ten years."""
    assert finish(Outcome("again", **asked)).due_at - NOW == pytest.approx(expected, abs=0.0011)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"after": 3600.0}, 1800),
        ({"after": -5.0}, 0.5),
        ({"after": 3600.0, "earliest": 0.0}, 0),
        ({"after": 3600.0, "earliest": 900.0}, 900),
        ({"after": 3600.0, "earliest": -900.0}, 0),
        ({"after": 3600.0, "earliest": TEN_THOUSAND_YEARS}, 3600 + 180 * SPREAD),
        ({"after": 3600.0, "earliest_at": NOW + 100}, 100),
        ({"after": 3600.0, "earliest_at": NOW - 100}, 0),
        ({"after": 3600.0, "earliest_at": NOW + 7200}, 3600 + 180 * SPREAD),
    ],
)
def test_again_may_be_pulled_forward_from_half_its_delay_on(asked: Any, expected: float) -> None:
    """Or from what it asks for, but never before the decision and never after it is due."""
    assert finish(Outcome("again", **asked)).earliest_at - NOW == pytest.approx(expected, abs=0.0011)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"after": 3600.0}, "changed"),
        ({"after": 0.0}, "changed"),
        ({"after": -5.0}, "changed; delay of -5 s raised to 1 s"),
        ({"at": NOW - 3600}, "changed; delay of -3600 s raised to 1 s"),
        ({"after": TEN_THOUSAND_YEARS}, "changed; delay of 3650000 d cut to 3653 d"),
    ],
)
def test_a_clamped_delay_says_so(asked: Any, expected: str) -> None:
    """What was asked and what was made of it stand in the reason that people read."""
    assert finish(Outcome("again", "changed", **asked)).decisions[-1].reason == expected


def test_a_herd_is_spread_over_its_tolerance_the_same_way_each_time() -> None:
    """A thousand messages due at once come spread over the tolerance, each at its own place, none early."""
    herd = [ASLEEP._replace(id=str(number)) for number in range(1000)]
    outcome = Outcome("again", after=3600.0, tolerance=600.0)
    offsets = [finish(outcome, state=state).due_at - NOW - 3600 for state in herd]

    assert offsets == [finish(outcome, state=state).due_at - NOW - 3600 for state in herd]
    assert 0 <= min(offsets) < 10
    assert 590 < max(offsets) <= 600.001
    assert 280 < sum(offsets) / 1000 < 320


def test_again_counts_up_the_version_and_starts_its_attempts_afresh() -> None:
    """Everything else stays as it is."""
    after = finish(Outcome("again", "unchanged", after=7200.0, tolerance=0.0))

    assert changes(ASLEEP, after) == {**NEXT, "due_at": LATER, "earliest_at": NOW + 3600}
    assert (after.decisions[-1].what, after.decisions[-1].reason) == ("again", "unchanged")


@pytest.mark.parametrize(
    ("asked", "payload", "lane"),
    [
        ({}, {"n": 1}, "short"),
        ({"payload": {"n": 2}, "is_payload_changed": True}, {"n": 2}, "short"),
        ({"payload": None, "is_payload_changed": True}, None, "short"),
        ({"lane": "long"}, {"n": 1}, "long"),
        ({"lane": "express"}, {"n": 1}, "short"),
    ],
)
def test_again_may_replace_the_payload_and_move_to_another_lane(asked: Any, payload: Any, lane: str) -> None:
    """None is a payload too; a lane that newer code knows and this does not is not followed."""
    after = finish(Outcome("again", after=60.0, **asked))

    assert (after.payload, after.lane) == (payload, lane)


def test_done_ends_the_message_with_its_result() -> None:
    """The last cycle counts as a version too."""
    after = finish(Outcome("done", "enough", result={"n": 4}))

    assert changes(ASLEEP, after) == {**NEXT, "ended": "done", "result": {"n": 4}}
    assert (after.decisions[-1].what, after.decisions[-1].version) == ("done", 4)


@pytest.mark.parametrize(("reason", "expected"), [("no colour", "no colour"), ("", "no reason given")])
def test_reject_parks_at_once(reason: str, expected: str) -> None:
    """The version stays: a replay tries the same one again."""
    after = finish(Outcome("reject", reason))

    assert changes(ASLEEP, after) == {"parked_reason": expected, "parked_at": NOW}
    assert next_wake(after) is None


@pytest.mark.parametrize(
    ("attempt", "full"), [(1, 2.0), (2, 4.0), (3, 8.0), (6, 64.0), (11, 2048.0), (12, 3600.0), (2000, 3600.0)]
)
def test_a_failure_backs_off_twice_as_long_each_time_with_jitter(attempt: int, full: float) -> None:
    """Between half and all of base times 2^(n-1), capped; each message of a herd at its own place."""
    outcome = Outcome("failed", "boom", max_attempts=9999, backoff=2.0, backoff_max=3600.0)
    herd = [ASLEEP._replace(id=str(number), attempt=attempt - 1) for number in range(200)]
    after = [finish(outcome, state=state) for state in herd]
    delays = [state.due_at - NOW for state in after]

    assert {(state.attempt, state.version) for state in after} == {(attempt, 3)}
    assert full / 2 <= min(delays) < full * 0.55
    assert full * 0.95 < max(delays) <= full + 0.001
    assert all(state.earliest_at == state.due_at for state in after)


def test_the_last_failure_parks() -> None:
    """Bounded attempts, then a person looks at it; the reason says how often it was tried."""
    once = finish(Outcome("failed", "boom", max_attempts=3))
    parked = finish(Outcome("failed", "boom", max_attempts=3), state=once)

    assert (once.attempt, once.is_parked, once.decisions[-1].what) == (2, False, "failed")
    assert changes(once, parked) == {"attempt": 3, "parked_reason": "attempt 3 of 3: boom", "parked_at": NOW}
    assert decide(parked, RunNow(), NOW).attempt == 0


@pytest.mark.parametrize(("after", "expected"), [(5.0, 5), (0.0, 1), (-7.0, 1), (None, 1), (1e12, TEN_YEARS)])
def test_retry_after_burns_no_attempt(after: float | None, expected: float) -> None:
    """Nobody failed: a server said when."""
    state = finish(Outcome("retry_after", "status 429", after=after))

    assert changes(ASLEEP, state) == due(pytest.approx(NOW + expected, abs=0.0011))


def test_a_closed_gate_is_waited_for_without_a_call() -> None:
    """It comes back when the gate opens, spread; no attempt is used up, and nobody has tried what was not called."""
    untried = ASLEEP._replace(attempt=0, is_tried=False)
    closed = Outcome("gated", "gate a is closed", after=30.0, tolerance=8.0)
    state = decide(begin(untried), closed, NOW, spread=lambda tolerance: tolerance / 2)

    assert changes(untried, state) == {"due_at": NOW + 34, "earliest_at": NOW + 34, "latest_at": NOW + 38}
    assert (state.decisions[-1].what, state.decisions[-1].reason) == ("gated", "gate a is closed")
    assert NOW + 30 <= finish(closed).due_at <= NOW + 38


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome("again", after=60.0, traced="now"), "now"),
        (Outcome("again", after=60.0), ""),
        (Outcome("failed", traced="now"), "now"),
        (Outcome("failed"), "before"),
        (Outcome("retry_after", after=60.0, traced="now"), "now"),
        (Outcome("handed_back", traced="now"), "now"),
        (Outcome("gated", after=60.0), "before"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.verdict,
)
def test_a_message_remembers_its_last_cycle_that_was_traced(outcome: Outcome, expected: str) -> None:
    """The next cycle names it; a lost call has no trace, and a message that is no longer sampled keeps none."""
    assert finish(outcome, state=ASLEEP._replace(traced="before")).traced == expected


def test_a_call_handed_back_is_due_at_once() -> None:
    """A worker that shut down hands its call to the next one; that is no attempt."""
    assert changes(ASLEEP, finish(Outcome("handed_back"))) == due(NOW)


SIGNALS: list[tuple[MessageState, Signal, dict[str, Any], str | None]] = [
    (ASLEEP, RunNow("asked"), due(NOW), "run_now"),
    (ASLEEP, Reschedule(write(LATER)), due(LATER), "reschedule"),
    (ASLEEP, Reschedule(write(NOW - 5)), due(NOW), "reschedule"),
    (ASLEEP, Reschedule("9998-01-01T00:00:00Z"), due(NOW + TEN_YEARS), "reschedule"),
    (ASLEEP, Reprioritize(1), {"priority": 1}, "reprioritize"),
    (ASLEEP, Reprioritize(5, write(LATER)), {"priority": 5, **due(LATER)}, "reprioritize"),
    (ASLEEP, Revise(None), {"payload": None, "revision": 1, **NEXT}, "revise"),
    (ASLEEP, Revise(2, lane="long"), {**REVISED, **NEXT, "lane": "long"}, "revise"),
    (ASLEEP, Revise(2, due_at=write(LATER)), {**REVISED, **NEXT, **due(LATER)}, "revise"),
    (ASLEEP, Revise(2, if_version=3, if_due_before=write(DUE + 1)), {**REVISED, **NEXT}, "revise"),
    (ASLEEP, Revise(2, if_version=2), {}, "ignored"),
    (ASLEEP, Revise(2, if_due_before=write(DUE)), {}, "ignored"),
    (ASLEEP, Revise(2, if_due_before="soon"), {}, "ignored"),
    (ASLEEP, Pause(), {"is_paused": True}, "pause"),
    (ASLEEP, Resume(), {}, "resume"),
    (ASLEEP, Stop(), {"ended": "stopped"}, "stop"),
    (ASLEEP, PullForward(write(DUE)), due(NOW), "pull_forward"),
    (ASLEEP, PullForward(write(DUE + 0.4)), due(NOW), "pull_forward"),
    (ASLEEP, PullForward(write(DUE + 1)), {}, None),
    (ASLEEP._replace(earliest_at=NOW + 1), PullForward(write(DUE)), {}, None),
    (ASLEEP._replace(due_at=NOW), PullForward(write(NOW)), {}, None),
    (RUNNING, RunNow(), {"asked_due_at": NOW}, "run_now"),
    (RUNNING, Reschedule(write(LATER)), {"asked_due_at": LATER}, "reschedule"),
    (RUNNING, Reprioritize(1), {"priority": 1}, "reprioritize"),
    (RUNNING, Reprioritize(1, write(LATER)), {"priority": 1, "asked_due_at": LATER}, "reprioritize"),
    (RUNNING, Revise(2), {**REVISED, "is_revised": True}, "revise"),
    (RUNNING, Revise(2, due_at=write(LATER)), {**REVISED, "is_revised": True, "asked_due_at": LATER}, "revise"),
    (RUNNING, Pause(), {"is_paused": True}, "pause"),
    (RUNNING, Resume(), {}, "resume"),
    (RUNNING, Stop("enough"), {"asked_stop": "enough"}, None),
    (RUNNING, PullForward(write(DUE)), {}, None),
    (PARKED, RunNow(), {**UNPARKED, **due(NOW)}, "run_now"),
    (PARKED, Reschedule(write(LATER)), {**UNPARKED, **due(LATER)}, "reschedule"),
    (PARKED, Reprioritize(1), {"priority": 1}, "reprioritize"),
    (PARKED, Reprioritize(1, write(LATER)), {"priority": 1, **UNPARKED, **due(LATER)}, "reprioritize"),
    (PARKED, Revise(2), {**REVISED, **NEXT}, "revise"),
    (PARKED, Revise(2, due_at=write(LATER)), {**REVISED, **NEXT, **UNPARKED, **due(LATER)}, "revise"),
    (PARKED, Pause(), {"is_paused": True}, "pause"),
    (PARKED, Resume(), {}, "resume"),
    (PARKED, Stop(), {"ended": "stopped"}, "stop"),
    (PARKED, PullForward(write(DUE)), {}, None),
    (PAUSED, RunNow(), due(NOW), "run_now"),
    (PAUSED, Reschedule(write(LATER)), due(LATER), "reschedule"),
    (PAUSED, Reprioritize(1), {"priority": 1}, "reprioritize"),
    (PAUSED, Revise(2), {**REVISED, **NEXT}, "revise"),
    (PAUSED, Pause(), {}, "pause"),
    (PAUSED, Resume(), {"is_paused": False}, "resume"),
    (PAUSED, Stop(), {"ended": "stopped"}, "stop"),
    (PAUSED, PullForward(write(DUE)), {}, None),
]


@pytest.mark.parametrize(("state", "signal", "expected", "what"), SIGNALS)
def test_each_signal_does_its_work_in_each_phase(
    state: MessageState, signal: Signal, expected: dict[str, Any], what: str | None
) -> None:
    """Asleep, running, parked or paused: the effect is this and nothing else, and it is remembered."""
    after = decide(state, signal, NOW)

    assert changes(state, after) == expected
    assert [decision.what for decision in after.decisions] == ([what] if what else [])


AGAIN = Outcome("again", after=60.0, tolerance=0.0, payload="old", is_payload_changed=True, lane="long")
LAST = Outcome("failed", "boom", max_attempts=1)
SETTLED: list[tuple[Outcome, tuple[Signal, ...], dict[str, Any]]] = [
    (AGAIN, (RunNow(),), {"payload": "old", "version": 4, **due(NOW)}),
    (AGAIN, (Reschedule(write(LATER)),), {"version": 4, **due(LATER)}),
    (AGAIN, (RunNow(), Reschedule(write(LATER))), due(LATER)),
    (AGAIN, (Revise("new"),), {"payload": "new", "version": 4, "lane": "short", "due_at": NOW + 60}),
    (AGAIN, (Revise("new", lane="medium"),), {"payload": "new", "lane": "medium"}),
    (AGAIN, (Revise("new", due_at=write(LATER)),), {"payload": "new", **due(LATER)}),
    (AGAIN, (Reprioritize(1),), {"priority": 1, "lane": "long"}),
    (AGAIN, (Pause(),), {"is_paused": True, "version": 4, "due_at": NOW + 60}),
    (AGAIN, (Stop(),), {"ended": "stopped", "version": 4}),
    (AGAIN, (Stop(), RunNow()), {"ended": "stopped"}),
    (Outcome("done", result=7), (RunNow(),), {"ended": "done", "result": 7}),
    (Outcome("done", result=7), (Stop(),), {"ended": "done", "result": 7}),
    (
        Outcome("done", result=7),
        (Revise("new"),),
        {"ended": "", "result": None, "payload": "new", "version": 4, **due(NOW)},
    ),
    (Outcome("done"), (Revise("new"), Stop()), {"ended": "stopped", "payload": "new"}),
    (AGAIN, (Stop("", "t/0", 11), Revise("new", "t/0", 12)), {"ended": "", "payload": "new", "version": 4}),
    (AGAIN, (Stop(), Revise("new", "t/0", 12)), {"ended": "", "payload": "new", "version": 4}),
    (AGAIN, (Stop("", "t/0", 12), Revise("old", "t/0", 11)), {"ended": "stopped"}),
    (AGAIN, (Stop(), Revise("new")), {"ended": "stopped"}),
    (Outcome("done"), (Stop("", "t/0", 11), Revise("new", "t/0", 12)), {"ended": "", "payload": "new", **due(NOW)}),
    (Outcome("reject", "no"), (Revise("new"),), {"parked_reason": "", "payload": "new", "version": 4, **due(NOW)}),
    (LAST, (Revise("new"),), {"parked_reason": "", "payload": "new", "attempt": 0, **due(NOW)}),
    (LAST, (Revise("new", due_at=write(LATER)),), {"parked_reason": "", "attempt": 0, **due(LATER)}),
    (LAST, (RunNow(),), {"parked_reason": "", "attempt": 0, **due(NOW)}),
    (LAST, (Stop(),), {"ended": "stopped"}),
    (LAST, (Pause(),), {"is_paused": True, "parked_reason": "attempt 2 of 1: boom"}),
    (Outcome("failed", max_attempts=9), (RunNow(),), {"attempt": 2, **due(NOW)}),
    (Outcome("failed", max_attempts=9), (Revise("new"),), {**NEXT, "payload": "new", **due(NOW)}),
    (Outcome("retry_after", after=9.0), (Revise("new"),), {**NEXT, "payload": "new", **due(NOW + 9)}),
    (Outcome("gated", after=9.0), (Revise("new"),), {**NEXT, "payload": "new", **due(NOW + 9), "latest_at": NOW + 9}),
    (Outcome("gated", after=9.0), (RunNow(),), {**due(NOW)}),
    (Outcome("handed_back"), (Revise("new"),), {**NEXT, "payload": "new", **due(NOW)}),
    (Outcome("retry_after", after=9.0), (RunNow(),), {"attempt": 1, **due(NOW)}),
]


@pytest.mark.parametrize(("outcome", "signals", "expected"), SETTLED)
def test_what_was_asked_while_the_handler_ran_counts_after_its_outcome(
    outcome: Outcome, signals: tuple[Signal, ...], expected: dict[str, Any]
) -> None:
    """Nothing that was asked for meanwhile is lost, and a payload that nobody has seen yet is always run."""
    after = finish(outcome, *signals)
    is_settled = (
        not after.is_running and not after.is_revised and after.asked_due_at is None and after.asked_stop is None
    )

    assert {name: getattr(after, name) for name in expected} == expected
    assert is_settled


def test_a_stop_while_running_is_remembered_with_its_reason() -> None:
    """Cut to its length when it is too long."""
    decision = finish(AGAIN, Stop("x" * 999)).decisions[-1]

    assert (decision.what, decision.reason) == ("stop", "x" * REASON_MAX)


def test_a_payload_that_nobody_has_tried_yet_is_replaced_within_its_version() -> None:
    """Only a tried version's idempotency key stands for its payload; an untried one keeps its number."""
    untried = ASLEEP._replace(attempt=0, is_tried=False)

    assert changes(untried, decide(untried, Revise(2), NOW)) == REVISED


@pytest.mark.parametrize(
    ("offsets", "payload", "newest"),
    [
        ([11], 11, 11),
        ([10], {"n": 1}, 10),
        ([9], {"n": 1}, 10),
        ([11, 11], 11, 11),
        ([11, 10, 13, 12, 13], 13, 13),
    ],
)
@pytest.mark.parametrize("state", [ASLEEP, RUNNING, PARKED, PAUSED])
def test_a_redelivered_revision_does_nothing(
    state: MessageState, offsets: list[int], payload: Any, newest: int
) -> None:
    """Only an offset newer than the last applied one of its source counts, whatever the phase."""
    for offset in offsets:
        state = decide(state, Revise(offset, "t/0", offset), NOW)

    assert (state.payload, state.sources) == (payload, {"t/0": newest})


def test_sources_are_told_apart() -> None:
    """Another partition has its own offsets; a revision without a source always counts."""
    state = decide(decide(ASLEEP, Revise("b", "t/1", 0), NOW), Revise("c"), NOW)

    assert (state.payload, state.revision, state.sources) == ("c", 2, {"t/0": 10, "t/1": 0})


@pytest.mark.parametrize(
    "signal",
    [
        Reschedule("tomorrow"),
        Reschedule("2026-11-21T20:00:00"),
        Reschedule(None),  # pyright: ignore[reportArgumentType] — what a hand-made signal may hold
        Reprioritize(0),
        Reprioritize(6),
        Reprioritize(True),
        Reprioritize(2.0),  # pyright: ignore[reportArgumentType] — what a hand-made signal may hold
        Reprioritize("2"),  # pyright: ignore[reportArgumentType] — what a hand-made signal may hold
        Reprioritize(2, "soon"),
        Revise(2, lane="express"),
        Revise(2, due_at="soon"),
        Revise(2, "t/0", 11, due_at="soon"),
        Revise(2, "t/0", "11"),  # pyright: ignore[reportArgumentType] — what a hand-made signal may hold
        PullForward("soon"),
        Stop(5),  # pyright: ignore[reportArgumentType] — what a hand-made signal may hold
    ],
)
@pytest.mark.parametrize("state", [ASLEEP, RUNNING, PARKED, PAUSED])
def test_an_unreadable_signal_is_remembered_and_ignored(state: MessageState, signal: Signal) -> None:
    """The message is unharmed, and `explain` shows what was wrong with the signal."""
    after = decide(state, signal, NOW)

    assert changes(state, after) == {}
    assert after.decisions[-1].what == "ignored"
    assert after.decisions[-1].reason.startswith(f"{type(signal).__name__}: ")


@pytest.mark.parametrize("ended", ["done", "stopped"])
def test_a_newer_record_begins_an_ended_message_anew(ended: Any) -> None:
    """Its sender was told that it has been taken; an older one, or one that makes no sense, changes nothing."""
    state = ASLEEP._replace(
        ended=ended, result=7, is_paused=True, parked_reason="no", attempt=2, is_tried=True, sources={"t/0": 5}
    )
    after = decide(state, Revise("new", "t/0", 6), NOW)

    assert (after.ended, after.result, after.payload, after.sources) == ("", None, "new", {"t/0": 6})
    assert (after.is_held, after.attempt, after.version) == (False, 0, state.version + 1)
    assert next_wake(after) == NOW
    assert decide(state, Revise("old", "t/0", 5), NOW) == state
    assert decide(state, Revise("odd", "t/0", 6, lane="none"), NOW).ended == ended


@pytest.mark.parametrize("ended", ["done", "stopped"])
def test_an_ended_message_never_changes(ended: Any) -> None:
    """Whatever else comes afterwards finds it as it was."""
    state = ASLEEP._replace(ended=ended)
    signals = [signal for _, signal, _, _ in SIGNALS if not getattr(signal, "source", "")]
    events = [*signals, *(outcome for outcome, _, _ in SETTLED)]

    assert [event for event in events if decide(state, event, NOW) != state] == []
    assert next_wake(state) is None


@pytest.mark.parametrize(("state", "expected"), [(ASLEEP, DUE), (RUNNING, DUE), (PARKED, None), (PAUSED, None)])
def test_a_held_message_does_not_want_to_run(state: MessageState, expected: float | None) -> None:
    """Parked and paused messages wait for a person, the others for their time."""
    assert next_wake(state) == expected


def test_what_is_due_at_once_is_not_due_a_moment_later() -> None:
    """Between two milliseconds "now" is rounded down, or waiting for it would cost a timer."""
    for now in (NOW + 0.0004, NOW + 0.0006):
        assert decide(ASLEEP, RunNow(), now).due_at <= now
        assert decide(ASLEEP, PullForward(write(DUE)), now).due_at <= now
        assert decide(RUNNING, Outcome("handed_back"), now).due_at <= now
