"""Limits: never more calls than allowed in any window, nearly all that are allowed, and counts that stay small."""

import bisect
import heapq
import json
import random
from datetime import timedelta
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from activities import Message
from activities.api.limit import Limit
from shared.errors import InvalidHandler, InvalidOutcome
from shared.keepers import limits
from shared.keepers.limits import (
    KeyTurns,
    Pace,
    ShardTurns,
    TurnRequest,
    check_requests,
    grace_of,
    read_answers,
    write_requests,
)
from shared.messages.decision import begin, decide
from shared.messages.message import MessageState, Outcome, Turn
from shared.packs.cycle import to_call
from shared.packs.entry import to_entry

NOW = 1_800_000_000.0
LEASE = 30.0
ROUND_TRIP = 0.2  # seconds between a call's end and the report of it
MINUTE = timedelta(minutes=1)


class Line:
    """Messages of one key that come when they are due, up to `lateness` too late, ask, wait and are called."""

    def __init__(self, pace: Pace, period: float, *, seed: int, lateness: float = 0.5, takes: float = 0.0) -> None:
        self.pace = pace
        self.grace = grace_of(period)
        self.lateness = lateness
        self.takes = takes
        self.turns = KeyTurns()
        self.calls: list[float] = []
        self.asked = self.running = self.maximum = 0
        self._random = random.Random(seed)
        self._due: list[tuple[float, int, float, float]] = []  # moment, what, its slot or position or lease, seconds
        self._lost = 0.0

    def add(self, moment: float) -> None:
        """A new message comes."""
        heapq.heappush(self._due, (moment, 0, 0.0, 0.0))

    def lose(self, share: float) -> None:
        """Let a share of those that wait never come back, because somebody stops them."""
        self._lost = share

    def run(self, until: float) -> None:
        """Let all happen that happens until a moment."""
        while self._due and self._due[0][0] <= until:
            now, what, number, seconds = heapq.heappop(self._due)
            if what == _ENDS:
                self.running -= 1
                self.turns.end_lease(number, seconds, 0)
            elif what == _HAS_SLOT and now <= number + self.grace:
                self.calls.append(now)
            else:
                self._ask(now, [number] if what else [])

    def _ask(self, now: float, held: list[float]) -> None:
        self.asked += 1
        response = self.turns.take(self.pace, now, held, 0 if held else 1)
        for slot in response.slots:
            if slot > now:
                self._come_back(slot, _HAS_SLOT, slot, 0.0)
                continue
            self.calls.append(now)
            if self.pace.at_once:
                self.running += 1
                self.maximum = max(self.maximum, self.running)
                took = self.takes + ROUND_TRIP
                heapq.heappush(self._due, (now + took, _ENDS, response.lease_until, took))

        for position, look_at in response.later:
            minimum = 0.5 if self.pace.at_once else 5.0
            self._come_back(look_at, _IN_LINE, position, max(minimum, (look_at - now) / 8))

    def _come_back(self, moment: float, what: int, number: float, tolerance: float) -> None:
        if self._random.random() >= self._lost:
            late = self._random.random() * (self.lateness + tolerance)
            heapq.heappush(self._due, (moment + late, what, number, 0.0))


_IN_LINE = 1
_HAS_SLOT = 2
_ENDS = 3


def most_in_window(calls: list[float], seconds: float) -> int:
    """Count the calls in the fullest window, both of its ends included."""
    moments = sorted(calls)
    return max((bisect.bisect_right(moments, at + seconds) - n for n, at in enumerate(moments)), default=0)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    calls=st.integers(1, 200),
    period=st.sampled_from([0.5, 1.0, 10.0, 60.0, 600.0]),
    arrivals=st.lists(st.tuples(st.floats(0, 120), st.integers(1, 100)), min_size=1, max_size=5),
    lateness=st.floats(0, 20),
    seed=st.integers(0, 99),
)
def test_no_window_holds_more_calls_than_what_is_stated(
    calls: int, period: float, arrivals: list[tuple[float, int]], lateness: float, seed: int
) -> None:
    """Whenever messages come, and however late: see docs/limits.md; from a minute on one call and 6 % above at most."""
    pace = Pace.of(calls, period, 0, LEASE)
    line = Line(pace, period, seed=seed, lateness=lateness)
    for at, count in arrivals:
        for _ in range(count):
            line.add(NOW + at)
    line.run(NOW + 400)

    for window in (period, 3.0, 60.0):
        assert most_in_window(line.calls, window) <= 1 + (window + grace_of(period) + pace.credit) / pace.interval
    if period >= MINUTE.total_seconds():
        assert most_in_window(line.calls, period) <= 1 + 1.06 * calls


@pytest.mark.parametrize(
    ("calls", "period", "messages", "lateness", "lost"),
    [
        (60, 60.0, 20_000, 0.5, 0.0),
        (60, 60.0, 20_000, 1.5, 0.0),
        (60, 60.0, 20_000, 0.5, 0.02),  # a share of the messages is stopped at each of its waits
        (1200, 60.0, 20_000, 0.5, 0.0),
        (10, 1.0, 20_000, 0.5, 0.0),
        (3600, 3600.0, 2_000, 0.5, 0.0),
    ],
)
def test_nine_tenths_of_a_limit_are_used_while_messages_wait(
    calls: int, period: float, messages: int, lateness: float, lost: float
) -> None:
    """With few requests for each call, though all messages have come at once."""
    line = Line(Pace.of(calls, period, 0, LEASE), period, seed=1, lateness=lateness)
    line.lose(lost)
    for _ in range(messages):
        line.add(NOW)
    seconds = 600.0
    line.run(NOW + seconds)

    assert len(line.calls) >= 0.9 * calls * seconds / period
    assert line.asked <= messages + 10 * len(line.calls), "after the first request of each"


@pytest.mark.parametrize(
    ("at_once", "takes", "minimum"), [(1, 2.0, 0.8), (3, 2.0, 0.8), (50, 2.0, 0.6), (3, 20.0, 0.8)]
)
def test_leases_are_never_more_than_allowed_and_nearly_always_in_use(
    at_once: int, takes: float, minimum: float
) -> None:
    """Though nobody says when a call ends: messages in line come back by the mean time of the calls before."""
    line = Line(Pace.of(0, 0.0, at_once, LEASE), 0.0, seed=2, takes=takes)
    for _ in range(20_000):
        line.add(NOW)
    line.run(NOW + 600)

    assert line.maximum == at_once
    assert len(line.calls) * takes / 600 / at_once >= minimum


def test_both_limits_hold_at_the_same_time() -> None:
    """A rate, and three at once."""
    line = Line(Pace.of(60, 60.0, 3, LEASE), 60.0, seed=3, takes=1.0)
    for _ in range(2_000):
        line.add(NOW)
    line.run(NOW + 300)

    assert line.maximum <= 3
    assert most_in_window(line.calls, 60.0) <= 1 + 1.06 * 60
    assert len(line.calls) >= 0.85 * 300


def test_the_leases_of_a_killed_worker_end_by_themselves() -> None:
    """After the time that the calls may take, and a margin."""
    turns = KeyTurns()
    pace = Pace.of(0, 0.0, 2, LEASE)

    assert len(turns.take(pace, NOW, [], 5).slots) == 2
    assert turns.take(pace, NOW + LEASE - 1, [NOW], 0).slots == []
    assert len(turns.take(pace, NOW + LEASE + 1, [NOW], 0).slots) == 1


def test_a_changed_limit_counts_from_the_next_request_on() -> None:
    """A higher one lets those in line through ahead of their positions; a lower one spreads them."""
    turns = KeyTurns()
    slow = Pace.of(1, 60.0, 0, LEASE)
    fast = Pace.of(60, 1.0, 0, LEASE)
    last_position, look_at = turns.take(slow, NOW, [], 100).later[-1]

    assert last_position - NOW > 5900
    assert look_at - NOW <= limits.LOOK_MAX_SECONDS
    assert turns.take(fast, NOW + 60, [last_position], 0).slots != []


def test_a_message_that_waits_longer_goes_first_and_newcomers_do_not_overtake_the_line() -> None:
    """Slots go to the first positions; who comes later stands behind."""
    turns = KeyTurns()
    pace = Pace.of(60, 60.0, 0, LEASE)
    in_line = [position for position, _ in turns.take(pace, NOW, [], 100).later]
    response = turns.take(pace, NOW + 15, in_line[:30], 1)

    assert response.slots == sorted(response.slots)
    assert len(response.slots) in range(13, 17)
    assert response.later[-1][0] > in_line[-1]


def test_keys_at_rest_are_forgotten_and_no_workflow_keeps_more_than_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a key for which there is no room come back in a minute; what is dumped are keys in use."""
    monkeypatch.setattr(limits, "KEYS_MAX", 10)
    shard = ShardTurns({})
    pace = Pace.of(1, 60.0, 0, LEASE)

    def ask(keys: range, at: float) -> list[int]:
        wire = write_requests([TurnRequest(f"key-{n}", pace, [], 1) for n in keys], [])
        return [len(response.slots) for response in read_answers(shard.take(wire, at))]

    assert ask(range(12), NOW) == [1] * 10 + [0] * 2
    assert len(shard.dump(NOW)) == 10
    assert ask(range(20, 24), NOW + 120) == [1] * 4
    assert sorted(shard.dump(NOW + 121)) == [f"key-{n}" for n in range(20, 24)]


def test_what_a_run_passes_on_changes_no_turn() -> None:
    """Through its wire form, leases and line included."""
    pace = Pace.of(60, 60.0, 2, LEASE)
    shard = ShardTurns({})
    shard.take(write_requests([TurnRequest("key", pace, [], 30)], []), NOW)
    wire = write_requests([TurnRequest("key", pace, [NOW], 3)], [])
    copy = ShardTurns(shard.dump(NOW + 1))

    assert copy.take(wire, NOW + 2) == shard.take(wire, NOW + 2)


UNREADABLE: list[Any] = [
    None,
    {},
    {"asks": [], "ended": 1},
    {"asks": [["key", [1, 1], [], 1]], "ended": []},
    {"asks": [["key", [1, 1, 1, 1], ["x"], 1]], "ended": []},
    {"asks": [["key", [1, 1, 1, 1], [], 1.5]], "ended": []},
    {"asks": [["key", [1, 1, 1, 1], [], 1_000_000_000]], "ended": []},
    {"asks": [["one", [1, 1, 1, 1], [], 60_000], ["other", [1, 1, 1, 1], [], 60_000]], "ended": []},
    {"asks": [["key", [1, 1, 1, 1e308], [], 1]], "ended": []},
    {"asks": [["k" * 1000, [1, 1, 1, 1], [], 1]], "ended": []},
    {"asks": [[{}, [1, 1, 1, 1], [], 1]], "ended": []},
    {"asks": [], "ended": [["key", None, 1]]},
    {"asks": [], "ended": [["key", 1]]},
]


@pytest.mark.parametrize("wire", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_request_that_can_not_be_read_is_refused(wire: Any) -> None:
    """Before it can stop the workflow."""
    with pytest.raises(ValueError, match="let worker processes ask"):
        check_requests(wire)


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"key": "a"}, "limits nothing"),
        ({"key": "a", "at_once": 0}, "at_once is 0"),
        ({"key": "a", "per": (0, MINUTE)}, "0 calls in"),
        ({"key": "a", "per": (1, timedelta(0))}, "1 calls in 0:00:00"),
        ({"key": "a\n", "at_once": 1}, "is no key"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_where_it_is_declared(declared: dict[str, Any], problem: str) -> None:
    """With the value and what to give instead."""
    with pytest.raises(InvalidHandler, match=problem):
        Limit(**declared)


def test_a_key_is_a_string_or_nothing() -> None:
    """Anything else parks the message, with a sentence."""
    message = Message(kind="a", id="1", version=0, lane="short", payload={"key": 7, "none": None, "long": "x" * 301})

    def key_of(name: str) -> str:
        return Limit(key=lambda m: m.payload[name], at_once=1).key_of(message)

    assert key_of("none") == ""
    assert Limit(key="all", at_once=1).key_of(message) == "all"
    for name in ("key", "long"):
        with pytest.raises(InvalidOutcome, match=r"Limit\(key\)"):
            key_of(name)


def test_a_limit_says_what_it_allows() -> None:
    """In words, for people."""
    assert Limit(key="all", at_once=3, per=(60, MINUTE)).summary == "60 in 1 min, 3 at once"


SLOT = Turn(NOW + 9, is_slot=True, key="0a1b2c3d")
IN_LINE = Turn(NOW + 9000, is_slot=False, key="0a1b2c3d")


def make_state(turn: Turn | None = None) -> MessageState:
    """Make a message that is due, perhaps with a turn."""
    state = MessageState("a", "1", "short", NOW, NOW)
    return state if turn is None else state._replace(turn=turn)


def test_a_message_that_waits_is_due_at_its_moment_and_remembers_only_its_last_wait() -> None:
    """However long its batch took; a pack of a thousand that wait would else be full of decisions."""
    waits = Outcome("gated", "waits for its turn at b", after=9.0, at=NOW + 9, tolerance=1.0, turn=SLOT)
    first = decide(begin(make_state()), waits, NOW + 2)
    second = decide(begin(first), waits._replace(at=NOW + 9), NOW + 30)

    assert first.latest_at == NOW + 10
    assert NOW + 9 <= first.due_at <= NOW + 10
    assert NOW + 30 <= second.due_at <= NOW + 31, "a batch may end after the slot; then it asks at once"
    assert (first.turn, [d.what for d in second.decisions]) == (SLOT, ["gated"])


@pytest.mark.parametrize("turn", [SLOT, IN_LINE])
@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Outcome("again", after=60.0), ()),
        (Outcome("done"), ()),
        (Outcome("failed", "no"), ()),
        (Outcome("retry_after", after=9.0), ()),
        (Outcome("gated", "a closed gate", after=9.0), (SLOT, IN_LINE)),
        (Outcome("handed_back"), (IN_LINE,)),
    ],
)
def test_a_turn_is_kept_until_the_handler_may_have_been_called(
    turn: Turn, outcome: Outcome, kept: tuple[Turn, ...]
) -> None:
    """No call uses a slot twice, and a worker's restart sends nobody to the end of the line."""
    assert decide(begin(make_state(turn)), outcome, NOW + 1).turn == (turn if turn in kept else ())


def test_a_turn_travels_with_its_message() -> None:
    """In the state of either encoding, and to the worker that calls; without one nothing is written."""
    state = make_state(IN_LINE)
    entry = json.loads(json.dumps(to_entry(state, "short")))

    assert Turn.load(to_call(entry, "a", "short", 0).turn) == IN_LINE
    assert Turn.load(MessageState.load(json.loads(json.dumps(state.dump()))).turn) == IN_LINE
    assert "turn" not in make_state().dump()
    assert len(to_entry(make_state(), "short")) == len(entry) - 1
