"""What holds for every pack whatever happens to its messages, tried on random lives."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.lanes import LANES
from shared.messages.message import MessageState, Outcome
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
foldings = st.tuples(st.just("fold"), st.integers(0, 2), st.lists(outcomes, min_size=1, max_size=6))
losses = st.tuples(st.just("lose"), st.integers(0, 2))
pauses = st.tuples(st.just("wait"), st.floats(0, 1e5))
events = st.sampled_from([admissions, steerings, batches, batches, foldings, foldings, losses, pauses]).flatmap(
    lambda kind: kind
)


class Life:
    """A pack, what is at work in it, and the clock."""

    def __init__(self) -> None:
        self.pack = build(size=4)
        self.now = NOW
        self.batches: list[Batch] = []
        self.admitted = 0

    def happen(self, event: tuple[Any, ...]) -> None:
        """Let one event happen."""
        match event:
            case "admit", ids, payload, lane, restarts:
                self._admit(ids, payload, lane, restarts=restarts)
            case "steer", ids, signal:
                self.pack.steer(ids, signal, self.now)
            case "take", open_lanes:
                self._take(open_lanes)
            case "fold", which, results:
                self._fold(which, results)
            case "lose", which:
                for batch in self.batches[which : which + 1]:
                    self.batches.remove(batch)
                    self.pack.batch_failed(batch, "lost", self.now)
            case "wait", seconds:
                self.now += seconds
            case _:
                pass

    def end_batches(self) -> None:
        """Let all that is at work be handed back."""
        for batch in self.batches:
            self.pack.batch_failed(batch, "the end", self.now)
        self.batches.clear()

    def _admit(self, ids: list[str], payload: Any, lane: str, *, restarts: bool) -> None:
        self.admitted += 1
        states = [MessageState("feed", i, lane, self.now, self.now, payload=payload) for i in ids]
        chunk = {"token": str(self.admitted), "entries": [to_entry(state, "short") for state in states]}
        self.pack.admit(chunk | {"restarts": restarts}, self.now)

    def _fold(self, which: int, results: list[Outcome]) -> None:
        for batch in self.batches[which : which + 1]:
            self.pack.apply_outcomes(batch, list(enumerate(results))[: len(batch.ids)], self.now)

    def _take(self, open_lanes: list[str]) -> None:
        self.pack.reach(self.now)
        batch = self.pack.take(open_lanes, self.now)
        if batch is not None:
            assert batch.lane in open_lanes
            assert all(taken[DUE] <= self.now * 1000 for taken in batch.entries)
            self.batches.append(batch)


def look(pack: PackState) -> dict[str, MessageState]:
    """Give all that a pack knows."""
    return {state.id: state for state in [*pack.alive(), *pack.finished()]}


@settings(max_examples=300, database=None)
@given(st.lists(events, max_size=25))
def test_bytes_are_those_of_what_a_pack_holds(events: list[tuple[Any, ...]]) -> None:
    """After any life, however often messages came, grew, ended and came again."""
    life = Life()
    for event in events:
        life.happen(event)
        if not life.batches:
            assert life.pack.bytes == count_bytes(life.pack)
    life.end_batches()

    assert life.pack.bytes == count_bytes(life.pack)


@settings(max_examples=200, database=None)
@given(st.lists(events, max_size=25))
def test_a_message_stays_until_it_has_ended(events: list[tuple[Any, ...]]) -> None:
    """No event makes one vanish, none is there twice, and never more are alive than there is room for."""
    life, before = Life(), dict[str, MessageState]()
    for event in events:
        life.happen(event)
        alive = [state.id for state in life.pack.alive()]
        known = look(life.pack)

        assert len(alive) == len(set(alive)) == len(life.pack) <= 4
        assert set(alive).isdisjoint(state.id for state in life.pack.finished())
        assert {i for i, state in before.items() if not state.ended} <= known.keys()
        outlook = life.pack.summary()
        assert outlook.asleep + outlook.held + outlook.running == len(alive)
        before = known


@settings(max_examples=100, database=None)
@given(st.lists(events, max_size=15), few_signals)
def test_every_pack_survives_its_wire_form(events: list[tuple[Any, ...]], later: list[Any]) -> None:
    """What one run hands on is what the next one starts from, and goes on from alike."""
    life = Life()
    for event in events:
        life.happen(event)
    life.end_batches()
    wire = life.pack.encode()
    loaded = PackState(json.loads(wire))

    assert loaded.encode() == wire
    loaded.reach(life.pack.replay_time)
    for signal in later:
        for pack in (life.pack, loaded):
            pack.steer(list(IDS), signal, life.now)
    assert look(loaded) == look(life.pack)
    assert loaded.summary() == life.pack.summary()
