"""Steering a pack: a signal reaches the messages it names, whatever they are doing, and can't break the others."""

from typing import Any

import pytest

from shared.messages.decision import begin, decide
from shared.messages.message import MessageState, Outcome
from shared.messages.signals import Pause, Reprioritize, Reschedule, Revise, RunNow, Signal, Stop, UnreadableSignal
from shared.packs.cycle import STILL_IN_FLIGHT, to_result
from shared.packs.entry import STATE_BYTES_MAX, measure, to_state
from tests.unit.test_pack_state import (
    AGAIN,
    DONE,
    NOW,
    REJECT,
    apply,
    count_bytes,
    entry,
    find,
    hold,
    phases,
    run,
    take,
)
from workflows.packs.state import PackState

LARGE = "x" * 4000
FLAWED: list[tuple[Signal | UnreadableSignal, str]] = [
    (UnreadableSignal("Revise", "holds nan, which JSON does not know"), "Revise: holds nan, which JSON does not know"),
    (
        Revise("x" * 99),
        "Revise: the payload is 101 bytes of JSON, the limit is 100; keep bulk data elsewhere and send its key",
    ),
    (
        Reschedule("soon"),
        "Reschedule: due_at is 'soon', not RFC 3339 with an offset; write it like 2026-11-21T20:00:00Z or …+01:00",
    ),
    (Reprioritize(7), "Reprioritize: priority 7 is not between 1 and 5"),
]


def tell(pack: PackState, ids: str, signal: Signal | UnreadableSignal, name: str = "s") -> dict[str, Any] | None:
    """Steer some messages and give the receipt."""
    pack.steer(list(ids), signal, NOW, name)
    return pack.receipts.find(name)


def fill(**first: Any) -> PackState:
    """Make a pack of messages with large payloads, the first one without, that has no room for another payload."""
    pack = hold(entry("a", **first), *(entry(f"m{n}", NOW + 9, payload="x" * 4040) for n in range(98)))
    assert STATE_BYTES_MAX - measure(LARGE) < pack.limits.bytes <= STATE_BYTES_MAX - 200
    return pack


def test_a_signal_reaches_those_it_names_and_tells_who_is_not_there() -> None:
    """Finished messages are not alive; the receipt counts by position."""
    pack = hold(*map(entry, "abcd"))
    run(pack, AGAIN, DONE, AGAIN)
    receipt = tell(pack, "axbdd", Pause())

    assert receipt == {"missing": [1, 2], "moved": {}}
    assert phases(pack, "abcd") == ["paused", "done", "active", "paused"]


def test_a_signal_that_comes_again_is_applied_once() -> None:
    """By its token; without one the signals themselves are idempotent."""
    pack = hold(entry("a"))
    tell(pack, "a", Revise(1), "s")
    tell(pack, "a", Revise(2), "s")

    assert (find(pack, "a").payload, find(pack, "a").revision) == (1, 1)


@pytest.mark.parametrize("signal", [RunNow(), Pause(), Stop("enough"), Revise(2), Reprioritize(1)])
def test_a_signal_while_the_handler_runs_is_decided_as_for_a_message_alone(signal: Signal) -> None:
    """What must wait for the outcome does; a stopped one has ended after it."""
    pack = hold(entry("a", payload=1), entry("b"))
    alone = begin(MessageState("feed", "a", "short", NOW, NOW, payload=1))
    batch = take(pack)
    tell(pack, "a", signal)
    outcome = Outcome("again", after=3600.0, tolerance=600.0)
    result = to_result(batch.entries[0], outcome, NOW, kind="feed", lane="short", spread=pack.config.within)
    pack.apply_results(batch, [result, STILL_IN_FLIGHT], NOW)
    expected = decide(decide(alone, signal, NOW), outcome, NOW, spread=pack.config.within)
    found = find(pack, "a")

    assert (found.phase, found.priority, found.version) == (expected.phase, expected.priority, expected.version)
    if not expected.ended:
        assert (found.payload, found.due_at) == (expected.payload, expected.due_at)
    apply(pack, batch, AGAIN)
    assert count_bytes(pack) == pack.limits.bytes


def test_a_parked_message_is_repaired_and_runs_again() -> None:
    """It keeps its place in the pack meanwhile."""
    pack = hold(entry("a"))
    run(pack, REJECT)
    tell(pack, "a", Revise(2), "s1")
    tell(pack, "a", RunNow(), "s2")

    (repaired,) = take(pack).entries
    state = to_state(repaired, "feed", "short")
    assert (state.id, state.version, state.attempt, state.payload, state.due_at) == ("a", 1, 0, 2, NOW)


@pytest.mark.parametrize(("signal", "reason"), FLAWED)
@pytest.mark.parametrize("phase", ["asleep", "running"])
def test_a_flawed_signal_changes_nothing_and_breaks_nobody(
    signal: Signal | UnreadableSignal, reason: str, phase: str
) -> None:
    """Whoever sent it by hand finds the reason among the message's decisions; the pack goes on."""
    pack = hold(entry("a", payload=1), entry("b"))
    pack.config.payload_max_bytes = 100
    batch = take(pack) if phase == "running" else None
    tell(pack, "a", signal)
    state = find(pack, "a")

    assert [(d.what, d.reason) for d in state.decisions] == [("ignored", reason)]
    assert (state.payload, state.revision, state.sources) == (1, 0, {})
    apply(pack, batch or take(pack), AGAIN)
    assert count_bytes(pack) == pack.limits.bytes


@pytest.mark.parametrize("phase", ["asleep", "running"])
def test_a_revision_for_which_there_is_no_room_is_remembered_as_ignored(phase: str) -> None:
    """The message keeps the payload it had, and says how to make room."""
    pack = fill(payload=1)
    if phase == "running":
        take(pack)
    tell(pack, "a", Revise(LARGE))
    state = find(pack, "a")

    assert (state.payload, state.revision, state.decisions[-1].what) == (1, 0, "ignored")
    assert state.decisions[-1].reason.startswith(
        "Revise: the payload finds no room in pack 0 of kind 'feed', which holds "
    )
    assert state.decisions[-1].reason.endswith(
        " of 400,000 bytes; spread the kind over more packs: dormice repack feed --packs 2"
    )


def test_revisions_of_messages_at_work_count_at_once() -> None:
    """Hundreds of them during one batch can't add up to more than a pack holds."""
    pack = hold(*(entry(f"m{n}") for n in range(200)))
    batch = take(pack)
    for message_id in batch.ids:
        pack.steer([message_id], Revise(LARGE), NOW)
    taken = [message_id for message_id in batch.ids if find(pack, message_id).revision]
    apply(pack, batch, AGAIN)

    assert 80 < len(taken) < 100
    assert pack.limits.bytes <= STATE_BYTES_MAX * 1.1  # what the refused ones remember of it comes on top
    assert count_bytes(pack) == pack.limits.bytes


def test_a_payload_for_which_there_is_no_room_parks_its_message() -> None:
    """With the payload it had and a sentence; its neighbours' outcomes count."""
    pack = fill(payload=1)
    run(pack, Outcome("again", after=60.0, payload=LARGE, is_payload_changed=True))
    state = find(pack, "a")

    assert (state.phase, state.payload, state.version) == ("parked", 1, 0)
    assert state.parked_reason.startswith("its new payload finds no room in pack 0 of kind 'feed', which holds ")
    assert count_bytes(pack) == pack.limits.bytes <= STATE_BYTES_MAX


def test_finished_messages_are_forgotten_before_one_is_parked_for_want_of_room() -> None:
    """Remembering the past is the least of what a pack does."""
    pack = fill()
    run(pack, AGAIN)
    for _ in range(2):  # this many bytes are two batches
        run(pack, Outcome("done", result="y" * 3900), now=NOW + 9)
    remembered = len(list(pack.messages.finished()))
    tell(pack, "a", Revise("z" * 30_000))

    assert find(pack, "a").payload == "z" * 30_000
    assert remembered > 40
    assert 1 <= remembered - len(list(pack.messages.finished())) < 10
    assert count_bytes(pack) == pack.limits.bytes <= STATE_BYTES_MAX


def test_results_never_burst_a_pack() -> None:
    """The oldest are forgotten; the latest is there for whoever waits for it."""
    pack = hold(*(entry(f"m{n}") for n in range(300)))
    run(pack, Outcome("done", result=LARGE))

    assert find(pack, "m299").result == LARGE
    assert count_bytes(pack) == pack.limits.bytes <= STATE_BYTES_MAX


def test_reasons_never_burst_a_pack() -> None:
    """A thousand messages that fail five times each with a long sentence: each still says why, in short."""
    pack = hold(*(entry(f"m{n}") for n in range(1000)))
    while (batch := pack.take(["short"], NOW + 1e6, "t")) is not None:
        apply(pack, batch, Outcome("failed", "r" * 300))

    assert {state.parked_reason[:30] for state in pack.messages.alive()} == {"attempt 5 of 5: " + "r" * 14}
    assert count_bytes(pack) == pack.limits.bytes <= STATE_BYTES_MAX * 1.1  # in full they would be twice as much
