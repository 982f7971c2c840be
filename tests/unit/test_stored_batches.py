"""Stored batches: a result is applied only where it is sure which messages the batch held."""

import json
from typing import Any

import pytest

from shared.packs.entry import DUE, ID, Entry, to_heading
from starter.steering.stored.stored_batches import StoredBatches
from workflows.packs.state import PackState

BEGUN = 1_795_291_200.0
BACK_AT = round((BEGUN + 3600) * 1000)


def pack(*, is_serial: bool = True) -> PackState:
    """Make a pack with two messages that are due when the batch begins, and one that is not."""
    heading = to_heading("feed", "short", index=0, packs=1, size=100, coalesce=0.0, is_serial=is_serial)
    dues = {"b": -1, "a": -2, "later": 60}
    return PackState(heading | {"entries": [entry(name, round((BEGUN + due) * 1000)) for name, due in dues.items()]})


def entry(name: str, due: int) -> Entry:
    """Make a message's entry."""
    return [name, due, 0, 0, 1, None, [[0, 1, "again", 0, ""]]]


def answer(*changes: Entry | None) -> dict[str, Any]:
    """Make a batch's result."""
    return {"begun_at": BEGUN, "ended_at": BEGUN + 1, "entries": list(changes)}


CHANGE: Entry = [BACK_AT, 0, 0, [[0, 1, "again", 0, ""]]]
BOTH = answer(CHANGE, [*entry("b", BACK_AT), {"tenant": "acme"}])


def dues(state: PackState) -> dict[str, int]:
    """Give when each message that is alive is due, in milliseconds."""
    return {entry[ID]: entry[DUE] for entry in json.loads(state.encode())["entries"]}


def test_a_result_is_applied_to_what_was_due() -> None:
    """In the pack's own order, the longest due first."""
    state = pack()

    assert StoredBatches(state, has_suspects=False).apply(BOTH) == BEGUN + 1

    assert dues(state) == {"a": BACK_AT, "b": BACK_AT, "later": round((BEGUN + 60) * 1000)}
    assert state.find("a") != state.find("b")


@pytest.mark.parametrize(
    "result",
    [
        answer(CHANGE),
        answer(CHANGE, CHANGE, CHANGE),
        answer([*entry("b", BACK_AT), {}], CHANGE),
        {**BOTH, "begun_at": "noon"},
        {**BOTH, "entries": None},
        None,
    ],
    ids=["too few", "too many", "of another message", "no moment", "no changes", "nothing"],
)
def test_a_result_that_does_not_fit_changes_nothing(result: Any) -> None:
    """It is from code with other rules, or not from a batch at all."""
    state, before = pack(), dues(pack())

    assert StoredBatches(state, has_suspects=False).apply(result) is None

    assert dues(state) == before


def test_runs_with_other_rules_are_left_to_the_pack() -> None:
    """Suspects of a lost batch are called apart, and older code applies signals at another time."""
    assert StoredBatches(pack(), has_suspects=True).apply(BOTH) is None
    assert StoredBatches(pack(is_serial=False), has_suspects=False).apply(BOTH) is None


@pytest.mark.parametrize(
    ("signals", "task_end", "is_sure"),
    [
        ([-2], -1, True),
        ([-2], 1, True),
        ([-3, -2], -1, True),
        ([-3, -2], 1, False),
        ([0.5], 1, False),
        ([-2], None, False),
    ],
    ids=[
        "in an earlier task",
        "alone in the same task",
        "two in an earlier task",
        "two in the same task",
        "after the batch began",
        "not applied yet",
    ],
)
def test_a_signal_makes_a_batch_unsure_unless_it_was_surely_applied_before(
    signals: list[float], task_end: float | None, *, is_sure: bool
) -> None:
    """A task applies its first signal before a batch begins; the next may have to wait until the batch has ended."""
    batches = StoredBatches(pack(), has_suspects=False)
    for moment in signals:
        batches.note_signal(BEGUN + moment)
    if task_end is not None:
        batches.note_task_end(BEGUN + task_end)

    assert (batches.apply(BOTH) is not None) == is_sure


def test_what_came_during_a_task_belongs_to_the_next_one() -> None:
    """The server writes it behind the task's end, with the moment at which it came."""
    batches = StoredBatches(pack(), has_suspects=False)
    batches.note_task_end(BEGUN + 2)
    batches.note_signal(BEGUN - 1)
    batches.note_task_end(BEGUN + 4)

    assert batches.apply(BOTH) is None


def test_a_signal_before_messages_are_gone_leaves_their_end_open() -> None:
    """It may have kept one alive; once a timer has fired and its task is over, nothing can."""
    done: Entry = [*entry("a", BACK_AT), {"ended": "done"}]
    for is_over in (False, True):
        batches = StoredBatches(pack(), has_suspects=False)
        batches.apply(answer(done, CHANGE))
        if is_over:
            batches.note_timer()
        batches.note_task_end(BEGUN + 2)
        batches.note_signal(BEGUN + 3)

        assert batches.is_unsettled != is_over
