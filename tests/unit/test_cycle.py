"""A batch's results: what a worker has decided, and what a pack decides itself, come to the same message."""

import json
from typing import Any, cast

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.messages.decision import MAX_DELAY, begin, decide
from shared.messages.json_value import encode_json
from shared.messages.message import MessageState, Outcome, clip_reason
from shared.messages.placement import PackSpread
from shared.messages.signals import Signal
from shared.packs.cycle import read_result, to_input, to_result
from shared.packs.entry import DECISIONS, DUE, ID, LATE, Entry, apply_change, to_entry, to_state
from tests.unit.test_decision_properties import few_signals
from tests.unit.test_decision_properties import outcomes as any_outcome
from tests.unit.test_pack_entry import LIMITING, SPREAD, moments, outcomes, states, usual

KIND = "feed"
LANE = "short"
spreads = st.sampled_from([SPREAD, LIMITING, PackSpread(0.0, 0.0)])
ends = moments | st.floats(1.6e9, 4e9)
alive = (usual | states).filter(lambda state: not state.ended)
every_outcome = outcomes | any_outcome


def answer(entry: Entry, outcome: Outcome, now: float, spread: PackSpread) -> Any:
    """Give the result that a pack reads in a batch's answer."""
    result = to_result(to_input(entry), outcome, now, kind=KIND, lane=LANE, spread=spread)
    return json.loads(encode_json(result))


def clip_last(entry: Entry) -> Entry:
    """Clip the reason of the last decision, as a pack does: with a note, that a worker adds, it may be longer."""
    *earlier, last = entry[DECISIONS]
    return [*entry[:DECISIONS], [*earlier, [*last[:-1], clip_reason(last[-1])]], *entry[DECISIONS + 1 :]]


def decide_in_pack(entry: Entry, state: MessageState, result: Any, spread: PackSpread) -> Entry:
    """Give the entry of a message after a result, as its pack decides it on a state."""
    outcome, its_spread = read_result(entry, result, LANE, spread)
    return to_entry(decide(state, outcome, outcome.ended_at, spread=its_spread), LANE)


@settings(max_examples=150, database=None)
@given(alive, every_outcome, ends, spreads)
def test_a_result_leads_to_what_its_worker_has_decided(
    state: MessageState, outcome: Outcome, now: float, spread: PackSpread
) -> None:
    """Whether the pack applies a change or decides itself, for each outcome and each message."""
    entry = to_entry(state, LANE)
    result = answer(entry, outcome, now, spread)
    decided = decide_in_pack(entry, begin(to_state(entry, KIND, LANE)), result, spread)

    if isinstance(result, list):
        changed = apply_change(entry, cast("Entry", result))
        assume(changed[DUE] <= (now + MAX_DELAY) * 1000)  # the spread leads beyond the longest delay, which a pack cuts
        assert clip_last(changed) == decided
    else:
        assert decided == to_entry(decide(begin(to_state(entry, KIND, LANE)), outcome, now, spread=spread), LANE)


@settings(max_examples=150, database=None)
@given(alive, every_outcome, few_signals, moments, spreads)
def test_a_message_that_was_steered_meanwhile_is_decided_as_if_it_were_alone(
    state: MessageState, outcome: Outcome, asked: list[Signal], now: float, spread: PackSpread
) -> None:
    """The worker has not heard of the signals; its decision, read back, gives them their due."""
    entry = to_entry(state, LANE)
    steered = begin(to_state(entry, KIND, LANE))
    for signal in asked:
        steered = decide(steered, signal, now)
    result = answer(entry, outcome, now, spread)
    found = decide_in_pack(entry, steered, result, spread)
    expected = to_entry(decide(steered, outcome, now, spread=spread), LANE)
    if isinstance(result, list):  # a decision of a worker keeps the wait that a pack uses below its tolerance
        expected[LATE] = min(expected[LATE], spread.limit(expected[LATE]))
        assume(apply_change(entry, cast("Entry", result))[DUE] <= (now + MAX_DELAY) * 1000)

    assert clip_last(found) == clip_last(expected)


@settings(max_examples=100, database=None)
@given(alive, every_outcome, ends, spreads)
def test_a_worker_needs_no_decision_that_the_next_one_replaces(
    state: MessageState, outcome: Outcome, now: float, spread: PackSpread
) -> None:
    """What is left out of its input is not missed in its answer, and nothing but that is left out."""
    entry = to_entry(state, LANE)
    sent = to_input(entry)
    whole = to_result(entry, outcome, now, kind=KIND, lane=LANE, spread=spread)
    part = to_result(sent, outcome, now, kind=KIND, lane=LANE, spread=spread)

    assert [*sent[:DECISIONS], *sent[DECISIONS + 1 :]] == [*entry[:DECISIONS], *entry[DECISIONS + 1 :]]
    assert part == whole
    assert sent[ID] == entry[ID]
