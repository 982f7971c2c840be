"""What holds for every pack whatever happens to its messages, tried on random lives."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.lanes import LANES
from shared.messages.message import MessageState, Outcome
from shared.packs.cycle import STILL_IN_FLIGHT, to_input, to_result
from shared.packs.entry import DUE, to_entry
from tests.unit.test_decision_properties import few_signals, lanes, outcomes, payloads, signals
from tests.unit.test_pack_state import NOW, build, count_bytes
from workflows.packs.calls.batch import Batch
from workflows.packs.state import PackState

IDS = "abcdef"

some_ids = st.lists(st.sampled_from(IDS), min_size=1, max_size=4)
admissions = st.tuples(st.just("admit"), some_ids, payloads, lanes.filter(lambda lane: lane in LANES), st.booleans())
steerings = st.tuples(st.just("steer"), some_ids, signals)
batches = st.tuples(st.just("take"), st.lists(st.sampled_from(list(LANES)), min_size=1, max_size=3))
results = outcomes | st.sampled_from([None, STILL_IN_FLIGHT])
answers = st.tuples(st.just("answer"), st.integers(0, 2), st.lists(results, min_size=1, max_size=6))
losses = st.tuples(st.just("lose"), st.integers(0, 2))
deaths = st.tuples(st.just("die"), st.integers(0, 2))
CONTINUE = ("continue as new",)
pauses = st.tuples(st.just("wait"), st.floats(0, 1e5))
events = st.sampled_from(
    [admissions, steerings, batches, batches, answers, answers, losses, deaths, st.just(CONTINUE), pauses]
).flatmap(lambda kind: kind)
END = Outcome("again", after=60.0, tolerance=9.0)
LOST = Outcome("failed", "the handler call was lost: timed out", max_attempts=0)


class Life:
    """A pack, what is at work in it, and the clock."""

    def __init__(self) -> None:
        self.pack = build(size=4)
        self.now = NOW
        self.admitted = 0
        self.begun = 0

    @property
    def batches(self) -> list[Batch]:
        """What is in flight."""
        return list(self.pack.in_flight.batches.values())

    def close(self) -> None:
        """Close the pack's entries, as when it sleeps for long."""
        self.pack.entries.close(self.now, self.pack.config.within)

    def happen(self, event: tuple[Any, ...]) -> None:
        """Let one event happen."""
        if event == CONTINUE:
            self._continue_as_new()
            return

        match event:
            case "admit", ids, payload, lane, restarts:
                self._admit(ids, payload, lane, restarts=restarts)
            case "steer", ids, signal:
                self.pack.steer(ids, signal, self.now)
            case "take", open_lanes:
                self._take(open_lanes)
            case "answer", which, results:
                self._answer(which, results)
            case "lose" | "die" as what, which:
                self._lose(which, is_process=what == "die")
            case "wait", seconds:
                self.now += seconds
            case _:
                pass

    def _lose(self, which: int, *, is_process: bool) -> None:
        for batch in self.batches[which : which + 1]:
            if is_process:
                self.pack.apply_to_left(batch, LOST, self.now)
            else:
                self.pack.lose_batch(batch, "lost", self.now, 1)

    def _continue_as_new(self) -> None:
        if self.pack.in_flight.is_answered:
            self.pack = PackState(json.loads(self.pack.encode()))

    def end_batches(self) -> None:
        """Let all that is at work be handed back."""
        for batch in self.batches:
            self.pack.apply_results(batch, [None] * len(batch.left), self.now)

    def _admit(self, ids: list[str], payload: Any, lane: str, *, restarts: bool) -> None:
        self.admitted += 1
        states = [MessageState("feed", i, lane, self.now, self.now, payload=payload) for i in ids]
        chunk = {"token": str(self.admitted), "entries": [to_entry(state, "short") for state in states]}
        self.pack.admit(chunk | {"restarts": restarts}, self.now)

    def _answer(self, which: int, results: list[Outcome | int | None]) -> None:
        """Let a worker answer for a batch; what it does not say is in flight."""
        for batch in self.batches[which : which + 1]:
            batch.queue = "a process"
            padded = [*results, *[STILL_IN_FLIGHT] * len(batch.left)][: len(batch.left)]
            answer = [self._to_result(batch, *pair) for pair in zip(batch.left, padded, strict=True)]
            self.pack.apply_results(batch, json.loads(json.dumps(answer)), self.now)

    def _to_result(self, batch: Batch, position: int, result: Outcome | int | None) -> Any:
        if not isinstance(result, Outcome):
            return result
        pack = self.pack
        entry = to_input(pack.in_flight.messages[batch.ids[position]].entry)
        return to_result(
            entry, result, self.now, kind=pack.config.kind, lane=pack.config.lane, spread=pack.config.within
        )

    def _take(self, open_lanes: list[str]) -> None:
        self.begun += 1
        batch = self.pack.take(open_lanes, self.now, str(self.begun))
        if batch is not None:
            assert batch.lane in open_lanes
            assert all(taken[DUE] <= self.now * 1000 for taken in batch.entries)


def look(pack: PackState) -> dict[str, MessageState]:
    """Give all that a pack knows."""
    return {state.id: state for state in [*pack.messages.alive(), *pack.messages.finished()]}


@settings(max_examples=300, database=None)
@given(st.lists(events, max_size=25))
def test_bytes_are_those_of_what_a_pack_holds(events: list[tuple[Any, ...]]) -> None:
    """After any life, however often messages came, grew, ended and came again."""
    life = Life()
    for event in events:
        life.happen(event)
        assert life.pack.limits.bytes == count_bytes(life.pack)
    life.end_batches()

    assert life.pack.limits.bytes == count_bytes(life.pack)


@settings(max_examples=200, database=None)
@given(st.lists(events, max_size=25))
def test_a_message_stays_until_it_has_ended(events: list[tuple[Any, ...]]) -> None:
    """No event makes one vanish, and none is there twice."""
    life = Life()
    before = dict[str, MessageState]()
    for event in events:
        life.happen(event)
        alive = [state.id for state in life.pack.messages.alive()]
        known = look(life.pack)

        assert len(alive) == len(set(alive)) == len(life.pack.messages)
        assert set(alive).isdisjoint(state.id for state in life.pack.messages.finished())
        assert {i for i, state in before.items() if not state.ended} <= known.keys()
        outlook = life.pack.messages.summary()
        assert outlook.asleep + outlook.held + outlook.running == len(alive)
        before = known


@settings(max_examples=100, database=None)
@given(st.lists(events, max_size=15), few_signals)
def test_every_pack_survives_its_wire_form(events: list[tuple[Any, ...]], later: list[Any]) -> None:
    """What one run passes on is what the next one starts from, with calls in flight, and it goes on the same way."""
    life = Life()
    for event in events:
        life.happen(event)
    for batch in life.batches:
        batch.queue = batch.queue or "a process"
    wire = life.pack.encode()
    loaded = PackState(json.loads(wire))

    assert loaded.encode() == wire
    for signal in later:
        for pack in (life.pack, loaded):
            pack.steer(list(IDS), signal, life.now)
    for pack in (life.pack, loaded):
        for batch in list(pack.in_flight.batches.values()):
            pack.apply_results(batch, [END.dump()] * len(batch.left), life.now)
    assert look(loaded) == look(life.pack)
    assert loaded.messages.summary() == life.pack.messages.summary()
