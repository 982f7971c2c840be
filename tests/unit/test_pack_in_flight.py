"""Messages in flight: what a pack keeps of those whose handlers are at work, also over the end of its run."""

import json
from typing import Any

import pytest

from shared.messages.decision import begin, decide
from shared.messages.message import MessageState, Outcome
from shared.messages.placement import pack_index
from shared.messages.signals import Pause, Reprioritize, Resume, Revise, RunNow, Signal, Stop
from shared.packs.cycle import STILL_IN_FLIGHT
from shared.packs.entry import ID, to_state
from tests.unit.test_pack_state import (
    AGAIN,
    DONE,
    GATED,
    NOW,
    REJECT,
    SPREAD,
    admit,
    apply,
    count_bytes,
    dump,
    entry,
    find,
    hold,
    phases,
    run,
    take,
)
from workflows.packs.calls.batch import Batch
from workflows.packs.calls.in_flight import InFlight
from workflows.packs.state import PackState

QUEUE = "dormice-calls-1"


def answer(pack: PackState, batch: Batch, *results: Any, now: float = NOW) -> None:
    """Let a worker process answer for a batch."""
    batch.queue = QUEUE
    pack.apply_results(batch, results, now)


def continue_as_new(pack: PackState) -> tuple[PackState, list[Batch]]:
    """Give the pack as its next run has it, and the batches that this one goes on with."""
    loaded = PackState(json.loads(pack.encode()))
    return loaded, list(loaded.in_flight.batches.values())


def test_what_is_in_flight_survives_its_wire_form() -> None:
    """Batches with the positions that are left, messages as they began, and what signals have made of them since."""
    pack = hold(*(entry(letter, payload={"n": 1}) for letter in "abcd"), entry("m", lane="medium"))
    first = take(pack, lanes=["short"])
    answer(pack, first, STILL_IN_FLIGHT, DONE.dump(), STILL_IN_FLIGHT, None)
    answer(pack, take(pack, lanes=["medium"]), STILL_IN_FLIGHT)
    pack.steer(["c"], Revise({"n": 200}), NOW)
    pack.steer(["c"], Stop("enough"), NOW)
    wire = json.loads(json.dumps(pack.in_flight.dump()))
    loaded = InFlight(wire)

    assert loaded.dump() == pack.in_flight.dump()
    assert loaded.messages == pack.in_flight.messages
    assert [(b.token, b.lane, b.queue, b.left) for b in loaded.batches.values()] == [
        (b.token, b.lane, b.queue, b.left) for b in pack.in_flight.batches.values()
    ]
    assert [batch.left for batch in loaded.batches.values()] == [[0, 2], [0]]
    assert loaded.messages["c"].growth == 2


def test_a_batch_that_nobody_has_answered_holds_up_the_end_of_a_run() -> None:
    """No process is known yet that the next run could ask."""
    pack = hold(entry("a"), entry("b"))
    batch = take(pack)
    before = pack.in_flight.is_answered
    answer(pack, batch, STILL_IN_FLIGHT, None)

    assert (before, pack.in_flight.is_answered) == (False, True)


def test_a_lane_begins_one_batch_at_a_time_and_never_waits_for_calls_in_flight() -> None:
    """Until the batch has answered: then the calls go on, and the next batch may begin."""
    pack = hold(entry("a"), entry("b"))
    batch = take(pack)
    before = [pack.in_flight.has_begun_none(lane) for lane in ("short", "medium")]
    answer(pack, batch, STILL_IN_FLIGHT, None)

    assert before == [False, True]
    assert pack.in_flight.has_begun_none("short")
    assert take(pack).ids == ["b"]


@pytest.mark.parametrize("outcome", [AGAIN, DONE, REJECT, GATED, Outcome("failed", "once")], ids=lambda o: o.verdict)
def test_the_next_run_decides_as_this_one_would_have(outcome: Outcome) -> None:
    """What was asleep, steered or alone in flight comes to the same, with the same bytes."""
    pack = hold(*(entry(letter, payload=1) for letter in "abc"), entry("later", NOW + 9))
    answer(pack, take(pack), *[STILL_IN_FLIGHT] * 3)
    pack.steer(["b"], Revise(2), NOW)
    pack.steer(["c"], Reprioritize(1), NOW)
    loaded, (batch,) = continue_as_new(pack)
    (own,) = pack.in_flight.batches.values()
    for each, its_batch in ((pack, own), (loaded, batch)):
        apply(each, its_batch, outcome)

    assert dump(loaded) == dump(pack)
    assert loaded.limits.bytes == count_bytes(loaded)
    assert not loaded.in_flight


@pytest.mark.parametrize(
    ("signal", "phase", "fields"),
    [
        (Revise(2), "active", {"payload": 2, "version": 1}),
        (Stop("enough"), "stopped", {"payload": 1, "version": 1}),
        (Pause(), "paused", {"payload": 1, "version": 1}),
        (RunNow(), "active", {"due_at": NOW, "version": 1}),
        (Reprioritize(1), "active", {"priority": 1, "due_at": NOW + 3600}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | dict) else "",
)
@pytest.mark.parametrize("is_next_run", [False, True])
def test_a_message_is_steered_while_its_call_is_in_flight(
    signal: Signal, phase: str, fields: dict[str, Any], *, is_next_run: bool
) -> None:
    """It is seen at once, and counts once the outcome has come, in this run or in the next."""
    pack = hold(entry("a", payload=1), entry("b"))
    answer(pack, take(pack), STILL_IN_FLIGHT, None)
    pack.steer(["a"], signal, NOW)
    if is_next_run:
        pack, _ = continue_as_new(pack)
    (batch,) = pack.in_flight.batches.values()
    alone = decide(begin(MessageState("feed", "a", "short", NOW, NOW, payload=1)), signal, NOW)
    seen = find(pack, "a")
    apply(pack, batch, AGAIN)
    found = find(pack, "a")

    assert (seen, seen.is_running) == (alone, True)
    assert found.phase == phase
    assert {name: getattr(found, name) for name in fields} == fields
    if not found.ended:  # of routine decisions a pack keeps the last
        assert found._replace(decisions=()) == decide(alone, AGAIN, NOW, spread=SPREAD)._replace(decisions=())


def test_calls_whose_process_has_died_are_one_failed_attempt_each() -> None:
    """Those that have ended before are not touched, nor is what was asked of the others forgotten."""
    pack = hold(*map(entry, "abc"))
    batch = take(pack)
    answer(pack, batch, STILL_IN_FLIGHT, AGAIN._replace(ended_at=NOW).dump(), STILL_IN_FLIGHT)
    pack.steer(["c"], Pause(), NOW)
    loaded, (batch,) = continue_as_new(pack)
    lost = Outcome("failed", "the handler call was lost: timed out", max_attempts=0)
    loaded.apply_to_left(batch, lost, NOW)

    assert [find(loaded, letter).attempt for letter in "abc"] == [1, 0, 1]
    assert phases(loaded, "abc") == ["active", "active", "paused"]
    assert (len(loaded.in_flight), loaded.in_flight.batches) == (0, {})
    assert loaded.limits.bytes == count_bytes(loaded)


def test_a_message_that_was_not_called_is_as_it_was() -> None:
    """Its process ended, or had no slot: no decision, no attempt, due as before; what was asked meanwhile counts."""
    pack = hold(entry("a", NOW - 5), entry("b"))
    before = find(pack, "a")
    batch = take(pack)
    pack.steer(["b"], Stop("enough"), NOW)
    answer(pack, batch, None, None)

    assert find(pack, "a") == before
    assert phases(pack, "b") == ["stopped"]
    assert pack.limits.bytes == count_bytes(pack)


@pytest.mark.parametrize("outcome", [AGAIN, DONE, REJECT, None], ids=["again", "done", "reject", "handed back"])
@pytest.mark.parametrize("is_next_run", [False, True])
def test_a_message_that_belongs_elsewhere_leaves_once_its_call_has_ended(
    outcome: Outcome | None, *, is_next_run: bool
) -> None:
    """Also if the run has ended meanwhile: with what came of it, and no sooner, for nobody else knows of the call."""
    names = [f"m{n}" for n in range(8)]
    pack = hold(*map(entry, names))
    answer(pack, take(pack), *[STILL_IN_FLIGHT] * 8)
    pack.resize(2)
    leaving = [name for name in names if pack_index(name, 2) == 1]
    before = [pack.messages.moved_to(name) for name in leaving]
    if is_next_run:
        pack, _ = continue_as_new(pack)
    (batch,) = pack.in_flight.batches.values()
    if outcome is None:
        answer(pack, batch, *[None] * 8)
    else:
        apply(pack, batch, outcome)
    chunks = [wire for _, _, wire in pack.forwarding]
    sent = [to_state(e, "feed", "short") for wire in chunks for e in [*wire["entries"], *wire["ended"]]]

    assert 0 < len(leaving) < 8
    assert before == [None] * len(leaving)
    assert [state.id for state in sent] == leaving
    assert {index for index, _, _ in pack.forwarding} == {1}
    assert {state.version for state in sent} == {0 if outcome in (None, REJECT) else 1}
    assert {pack.messages.moved_to(name) for name in leaving} == {1}
    assert all(pack.messages.find(name) is None for name in leaving)
    assert pack.limits.bytes == count_bytes(pack)


def test_what_belongs_elsewhere_is_steered_here_until_it_leaves() -> None:
    """A signal reaches it where its call is known, and goes with it."""
    name = next(f"m{n}" for n in range(99) if pack_index(f"m{n}", 2) == 1)
    pack = hold(entry(name))
    answer(pack, take(pack), STILL_IN_FLIGHT)
    pack.resize(2)
    pack, (batch,) = continue_as_new(pack)
    pack.steer([name], Pause(), NOW)
    apply(pack, batch, AGAIN)
    ((_, _, chunk),) = pack.forwarding
    (state,) = (to_state(each, "feed", "short") for each in chunk["entries"])

    assert (state.id, state.phase, state.version) == (name, "paused", 1)


def test_many_calls_in_flight_leave_the_others_their_rhythm() -> None:
    """A pack goes on with all that is due, and each slow one comes back when its own call has ended."""
    pack = hold(*map(entry, "abc"))
    answer(pack, take(pack), STILL_IN_FLIGHT, AGAIN._replace(ended_at=NOW).dump(), AGAIN._replace(ended_at=NOW).dump())
    for hours in range(1, 5):
        run(pack, AGAIN, now=NOW + hours * 3600)
    (slow,) = pack.in_flight.batches.values()
    apply(pack, slow, AGAIN, now=NOW + 4.5 * 3600)

    assert [find(pack, letter).version for letter in "abc"] == [1, 5, 5]
    assert find(pack, "a").due_at == NOW + 5.5 * 3600


def test_a_record_that_meets_a_call_in_flight_revises_its_message() -> None:
    """A message in flight is alive: it is neither started a second time nor missed."""
    pack = hold(entry("a", payload=1))
    answer(pack, take(pack), STILL_IN_FLIGHT)
    known = admit(pack, entry("a", payload=7), name="chunk")
    revised = admit(pack, entry("a", payload=2, sources={"t/0": 1}), name="record", revises=True)
    pack.steer(["a"], Resume(), NOW)
    (batch,) = pack.in_flight.batches.values()
    apply(pack, batch, DONE)

    assert (known["known"], revised["revised"]) == ([0], [0])
    assert (find(pack, "a").payload, phases(pack, "a")) == (2, ["active"])
    assert [each[ID] for each in dump(pack)["entries"]] == ["a"]
