"""Entries of a pack that sleeps for long are kept as JSON; nothing else about the pack changes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_pack_lives import IDS, Life, events, look
from tests.unit.test_pack_state import NOW, dump, entry
from workflows.packs.entries import PackEntries


@settings(max_examples=200, database=None)
@given(st.lists(events, max_size=20))
def test_a_pack_that_condenses_lives_as_one_that_does_not(events: list[tuple[Any, ...]]) -> None:
    """Whatever happens, and whoever reads it meanwhile, each message is the same in both."""
    usual = Life()
    condensing = Life()
    for event in events:
        condensing.pack.entries.condense("short", NOW)
        for life in (usual, condensing):
            life.happen(event)
        condensing.pack.entries.condense("short", NOW)
        condensing.pack.entries.is_reading = lambda: True

        assert len(condensing.pack) == len(usual.pack)
        assert look(condensing.pack) == look(usual.pack)
        assert [condensing.pack.find(i) for i in IDS] == [usual.pack.find(i) for i in IDS]
        assert condensing.pack.summary() == usual.pack.summary()
        assert condensing.pack.counts(NOW + 5) == usual.pack.counts(NOW + 5)

        condensing.pack.entries.is_reading = lambda: False
    for life in (usual, condensing):
        life.end_batches()
    condensing.pack.entries.condense("short", NOW)
    assert dump(condensing.pack) == dump(usual.pack)


@pytest.mark.parametrize("payload", [None, 2**70, -0.0, 1e308, "ünï", {"b": [1, {"a": True}], "a": 1.5}])
def test_what_is_condensed_comes_back_in_order(payload: Any) -> None:
    """With the same payloads, number for number."""
    given = [entry(name, payload=payload) for name in ("b", "a", "c")]
    entries = PackEntries(given)
    entries.condense("short", NOW)
    entries.condense("short", NOW)  # of what is condensed there is nothing to do

    assert len(entries) == 3
    assert repr(list(entries.open().values())) == repr(given)


def test_who_only_reads_leaves_the_entries_condensed() -> None:
    """Else one look at each of many packs would need the memory that they have saved."""
    entries = PackEntries([entry("a")])
    entries.is_reading = lambda: True
    opened = entries.open()
    entries.condense("short", NOW)

    assert entries.open() is not opened
    assert entries.open() == opened

    entries.is_reading = lambda: False
    assert entries.open() is entries.open()
