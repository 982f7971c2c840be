"""Pulling a pack forward: a number of its earliest due messages run ahead of time, and none that must not."""

import math
from dataclasses import asdict, replace
from typing import Any

import pytest

from shared.messages.message import MessageState
from shared.messages.signal_reading import read_pull_forward
from shared.messages.signals import Pause, PullMany, Reschedule
from shared.packs.entry import Entry, to_entry
from shared.temporal.search_attributes import DUE_AT, EARLIEST_AT, PackIndex, pack_updates
from tests.unit.test_pack_state import AGAIN, NOW, apply, entry, find, hold, take
from workflows.packs.state import PackState

HOUR = 3600.0
PULL = PullMany(2, NOW, NOW + 10 * HOUR, "p")


def ahead(message_id: str, hours: float, earliest: float = NOW) -> Entry:
    """Make the entry of a message that is due in some hours and may be pulled forward from a moment on."""
    return to_entry(MessageState("feed", message_id, "short", NOW + hours * HOUR, earliest), "short")


def pulled(pack: PackState) -> list[str]:
    """Give the ids of the batch that a pack begins at once; none if it goes on sleeping."""
    batch = pack.take(("short",), NOW, "t")
    return [] if batch is None else batch.ids


def test_the_earliest_due_run_first_and_no_more_than_asked_for() -> None:
    """In the order of their due times, whatever their ids."""
    pack = hold(ahead("a", 3), ahead("b", 1), ahead("c", 2), ahead("d", 4))
    pack.pull_forward(PULL)

    assert pulled(pack) == ["b", "c"]


def test_none_runs_before_its_earliest_moment() -> None:
    """Nor one that is held, or whose due time lies behind the bound, however idle the workers are."""
    pack = hold(ahead("a", 1, NOW + 1), ahead("b", 2), ahead("c", 3), ahead("d", 11))
    pack.steer(["b"], Pause(), NOW)
    pack.pull_forward(replace(PULL, count=10))

    assert pulled(pack) == ["c"]


def test_a_pull_that_comes_again_does_nothing() -> None:
    """By its token: the one who sent it may have been killed before it was noted."""
    pack = hold(ahead("a", 1), ahead("b", 2), ahead("c", 3))
    pack.pull_forward(replace(PULL, count=1))
    pack.pull_forward(replace(PULL, count=1))

    assert pulled(pack) == ["a"]


def test_what_was_pulled_is_not_pulled_again_in_its_version() -> None:
    """It is due now, or at work, and after that comes back as any other."""
    pack = hold(ahead("a", 1), ahead("b", 2))
    pack.pull_forward(replace(PULL, count=1))
    pack.pull_forward(PullMany(1, NOW, PULL.until, "q"))
    batch = take(pack)
    pack.pull_forward(PullMany(2, NOW, PULL.until, "r"))
    apply(pack, batch, AGAIN, now=NOW + 1)

    assert batch.ids == ["a", "b"]
    assert [find(pack, i).version for i in "ab"] == [1, 1]
    assert pulled(pack) == []


def test_due_messages_go_before_those_that_were_pulled() -> None:
    """Idle capacity is what due work leaves over."""
    pack = hold(ahead("a", 1), entry("late", NOW - 60), entry("z", NOW))
    pack.pull_forward(replace(PULL, at=NOW))

    assert take(pack).ids == ["late", "z", "a"]


def test_a_message_that_was_given_another_time_is_not_asked_for_any_more() -> None:
    """A person's word counts more than the pull before it."""
    pack = hold(ahead("a", 1))
    pack.pull_forward(PULL)
    pack.steer(["a"], Reschedule("2031-01-01T00:00:00Z"), NOW)

    assert pulled(pack) == []


@pytest.mark.parametrize(
    "flaw",
    [
        {"count": 0},
        {"count": "1"},
        {"count": True},
        {"at": None},
        {"at": math.nan},
        {"until": "later"},
        {"until": 1e300},
        {"token": ""},
        {"token": 7},
        {"token": "\ud800"},
    ],
)
def test_a_pull_is_read_as_it_was_written_or_not_at_all(flaw: dict[str, Any]) -> None:
    """It may come from the Web UI's form: what is none changes nothing."""
    assert read_pull_forward([asdict(PULL)]) == PULL
    with pytest.raises(ValueError, match="a pack wants ids, or count, at, until and token"):
        read_pull_forward([asdict(PULL) | flaw])


def test_the_index_tells_from_when_on_a_pack_may_be_pulled() -> None:
    """The earliest moment of all its messages, written with the first due one and only with that."""
    outlook = hold(ahead("a", 3, NOW + 60), ahead("b", 4, NOW + 30), entry("c", NOW + 5 * HOUR)).messages.summary()
    index = PackIndex(outlook.due_at, earliest_at=outlook.earliest_at)
    first = {u.key: u.value and u.value.timestamp() for u in pack_updates(PackIndex.load(None), index, 60.0)}

    assert first == {DUE_AT: NOW + 3 * HOUR, EARLIEST_AT: NOW + 30}
    assert pack_updates(index, replace(index, earliest_at=NOW + 59), 60.0) == []
    assert hold().messages.summary().earliest_at == math.inf
