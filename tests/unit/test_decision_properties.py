"""What holds for every message whatever happens to it, tried on random lives."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.decision import MAX_DELAY, MIN_DELAY, begin, decide, next_wake
from shared.messages.message import DECISIONS_KEPT, MessageState, Outcome
from shared.messages.signals import Pause, PullForward, Reprioritize, Reschedule, Resume, Revise, RunNow, Signal, Stop

START = 1_795_262_400.0
AS_INDEXED = "as indexed"  # stands for the due time that the message has when the signal comes
MICROSECOND = 1e-6  # what a float of today's epoch is good for
NOTHING_WAITS = {"is_running": False, "is_revised": False, "asked_due_at": None, "asked_stop": None}

delays = st.floats(-1e6, 1e12) | st.sampled_from([0.0, 0.4, 1.0, 60.0, 86_400.0])
moments = st.floats(START - 1e7, START + 1e9)
written_moments = moments.map(lambda epoch: datetime.fromtimestamp(epoch, UTC).isoformat()) | st.sampled_from(
    ["", "soon", "2026-11-21T20:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"]
)
lanes = st.sampled_from(["", "short", "medium", "long", "express"])
payloads = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
reasons = st.text(max_size=5) | st.just("x" * 400)

run_nows = st.builds(RunNow, reasons)
reschedules = st.builds(Reschedule, written_moments, reasons)
reprioritizes = st.builds(Reprioritize, st.integers(-1, 7), st.none() | written_moments, reasons)
revises = st.builds(
    Revise, payloads, st.sampled_from(["t/0", "t/1"]), st.integers(-2, 9), lanes, st.none() | written_moments
)
pauses = st.builds(Pause, reasons)
resumes = st.builds(Resume, reasons)
stops = st.builds(Stop, reasons)
pull_forwards = st.builds(PullForward, written_moments | st.just(AS_INDEXED))
some_of_each: list[st.SearchStrategy[Signal]] = [run_nows, reschedules, reprioritizes, revises, resumes, pull_forwards]
signals = st.sampled_from([*some_of_each, *some_of_each, resumes, pauses, stops]).flatmap(lambda kind: kind)


def outcome(**given: Any) -> Outcome:
    """Make an outcome; of a named tuple hypothesis would fill in every field."""
    return Outcome(**given)


agains = st.builds(
    outcome,
    verdict=st.just("again"),
    reason=reasons,
    after=st.none() | delays,
    at=st.none() | moments,
    earliest=st.none() | delays,
    earliest_at=st.none() | moments,
    tolerance=st.none() | delays,
    payload=payloads,
    is_payload_changed=st.booleans(),
    lane=lanes,
)
others = st.builds(
    outcome,
    verdict=st.sampled_from(["failed", "failed", "failed", "retry_after", "handed_back", "gated", "reject", "done"]),
    reason=reasons,
    after=st.none() | delays,
    result=payloads,
    max_attempts=st.integers(1, 4),
    backoff=st.floats(0.001, 1e6),
    backoff_max=st.floats(1.0, 1e6),
)
outcomes = st.sampled_from([agains, agains, others]).flatmap(lambda kind: kind)
few_signals = st.lists(signals, max_size=2)
lives = st.lists(st.tuples(few_signals, few_signals, outcomes, st.floats(0, 1e5)), min_size=1, max_size=8)
"""Cycles: signals while asleep, signals while the handler runs, its outcome, and the seconds until the next one."""

Life = list[tuple[list[Signal], list[Signal], Outcome, float]]


class Step(NamedTuple):
    """One event of a life."""

    before: MessageState
    event: Signal | Outcome
    after: MessageState
    now: float


def born() -> MessageState:
    """Make a message that has just been started."""
    return MessageState("feed", "a", "short", START, START, payload="first")


def step_on(state: MessageState, event: Signal | Outcome, now: float) -> Step:
    """Let one event happen."""
    if isinstance(event, PullForward) and event.expected_due_at == AS_INDEXED:
        event = PullForward(datetime.fromtimestamp(state.due_at, UTC).isoformat())
    return Step(state, event, decide(state, event, now), now)


def live(life: Life) -> Iterator[Step]:
    """Let a message live; a handler is only called when the message may run."""
    state = born()
    now = START

    for asleep, meanwhile, outcome, seconds in life:
        for signal in asleep:
            yield (step := step_on(state, signal, now))
            state = step.after
        is_run = next_wake(state) is not None
        if is_run:
            state = begin(state)
        for event in (*meanwhile, outcome) if is_run else meanwhile:
            yield (step := step_on(state, event, now))
            state = step.after
        now += seconds


def grow(life: Life) -> MessageState:
    """Give the state at the end of a life."""
    state = born()
    for step in live(life):
        state = step.after
    return state


def drop_decisions(state: MessageState) -> MessageState:
    """Forget what was decided, keep what follows from it."""
    return state._replace(decisions=())


def thorough(max_examples: int = 60) -> settings:
    """Give settings without a clock: a slow machine proves the same."""
    return settings(max_examples=max_examples, database=None)


@thorough()
@given(lives)
def test_the_version_counts_the_cycles_that_came_to_an_end(life: Life) -> None:
    """It rises by one on again and done, and when another payload takes the place of one that was tried."""
    for before, event, after, _ in live(life):
        is_decided = isinstance(event, Outcome) and (event.verdict in ("again", "done") or before.is_revised)
        is_replaced = after.revision > before.revision and before.is_tried and not before.is_running

        assert after.version == before.version + (is_decided or is_replaced)


@thorough(120)
@given(few_signals, agains, st.floats(START, START + 1e8))
def test_again_is_never_due_early(asleep: list[Signal], outcome: Outcome, now: float) -> None:
    """Not before the delay or moment that was asked for, and a second after the decision at the soonest."""
    state = begin(grow([(asleep, [], Outcome("again", after=1.0), 0.0)]))
    after = decide(state, outcome, now)
    asked = (outcome.after or 0.0) if outcome.at is None else outcome.at - now

    assert after.ended or after.due_at >= now + min(max(asked, MIN_DELAY), MAX_DELAY) - MICROSECOND


@thorough()
@given(st.datetimes(datetime(2026, 11, 22), datetime(2036, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 — hypothesis adds the zone
def test_a_rescheduled_message_is_never_due_early(moment: datetime) -> None:
    """A moment between two milliseconds is rounded up, by less than one."""
    due_at = decide(born(), Reschedule(moment.isoformat()), START).due_at

    assert -MICROSECOND <= due_at - moment.timestamp() < 0.001 + MICROSECOND


@thorough()
@given(lives)
def test_idle_capacity_never_starts_after_the_due_time(life: Life) -> None:
    """The moment from which a message may be pulled forward is never later than when it is due."""
    assert [step for step in live(life) if step.after.earliest_at > step.after.due_at] == []


@thorough()
@given(lives)
def test_no_due_time_lies_beyond_the_longest_delay_and_tolerance(life: Life) -> None:
    """However large the numbers of handlers and senders are."""
    assert [step for step in live(life) if step.after.due_at > step.now + 2 * MAX_DELAY + 1] == []


@thorough()
@given(lives)
def test_the_memory_of_decisions_stays_small(life: Life) -> None:
    """Five decisions of one short line each, however long the life is."""
    for step in live(life):
        assert len(step.after.decisions) <= DECISIONS_KEPT
        assert all(len(decision.reason.splitlines()) <= 1 for decision in step.after.decisions)
        assert all(len(decision.reason) < 400 for decision in step.after.decisions)


@thorough()
@given(lives)
def test_every_state_survives_its_wire_form(life: Life) -> None:
    """What one run hands on is exactly what the next one starts from, also in mid-cycle."""
    for step in live(life):
        assert MessageState.load(json.loads(json.dumps(step.after.dump()))) == step.after


@thorough()
@given(lives)
def test_the_same_life_leads_to_the_same_state(life: Life) -> None:
    """A replay agrees with the first run, and so does one that starts from wire forms at every step."""
    again = [decide(MessageState.load(step.before.dump()), step.event, step.now) for step in live(life)]

    assert again == [step.after for step in live(life)]


@thorough()
@given(lives)
def test_a_held_or_ended_message_never_wants_to_run(life: Life) -> None:
    """All others want to, at their due time."""
    for step in live(life):
        is_quiet = step.after.is_held or step.after.ended != ""

        assert next_wake(step.after) == (None if is_quiet else step.after.due_at)


@thorough()
@given(lives)
def test_an_outcome_settles_all_that_waited_for_it(life: Life) -> None:
    """No handler is at work afterwards, and nothing that was asked for meanwhile waits any longer."""
    for step in live(life):
        if isinstance(step.event, Outcome):
            assert step.after._replace(**NOTHING_WAITS) == step.after


@thorough()
@given(lives)
def test_only_done_and_stop_end_a_message(life: Life) -> None:
    """Neither failures nor any other signal do, and nothing but a newer record begins an ended message anew."""
    for before, event, after, _ in live(life):
        if before.ended:
            is_begun_anew = isinstance(event, Revise) and event.source != "" and not after.ended
            assert is_begun_anew or after._replace(decisions=()) == before._replace(decisions=())
        elif after.ended:
            is_stopped = isinstance(event, Stop) or before.asked_stop is not None
            assert is_stopped or (isinstance(event, Outcome) and event.verdict == "done")


@thorough()
@given(lives)
def test_a_newer_payload_is_never_lost(life: Life) -> None:
    """A revision that was applied while the handler ran is the payload after the outcome."""
    for before, event, after, _ in live(life):
        if isinstance(event, Outcome) and before.is_revised:
            assert after.payload == before.payload
            assert after.ended != "done"
            assert not after.is_parked


@thorough(120)
@given(lives, signals, st.floats(0, 1e5))
def test_a_signal_delivered_twice_counts_once(life: Life, signal: Signal, seconds: float) -> None:
    """Redelivery changes nothing but the memory of decisions, whatever the message is doing."""
    state = grow(life)
    for phase in (state, begin(state)):
        first = step_on(phase, signal, START + seconds)
        second = decide(first.after, first.event, first.now)

        assert drop_decisions(second) == drop_decisions(first.after)


@thorough()
@given(lives, st.lists(signals, max_size=4))
def test_signals_never_touch_identity(life: Life, later: list[Signal]) -> None:
    """Kind, id, tenant and correlation id are not for signals to change."""
    state = grow(life)

    def identify(message: MessageState) -> tuple[Any, ...]:
        return message.kind, message.id, message.tenant, message.correlation_id

    for signal in later:
        before, _, state, _ = step_on(state, signal, START + 1e6)

        assert identify(state) == identify(before)
