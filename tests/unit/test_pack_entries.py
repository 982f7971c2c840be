"""Entries of a pack that sleeps for long are kept as bytes by due time; nothing else about the pack changes."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.messages.placement import PackSpread
from shared.packs.entry import DUE, ID
from tests.unit.test_pack_lives import IDS, Life, events, look
from tests.unit.test_pack_state import NOW, dump, entry, hold
from workflows.packs import entries as entries_module
from workflows.packs.entries import PackEntries

HOUR = 3600.0
SPREAD = PackSpread(0.0, 300.0)


@pytest.fixture
def small_segments() -> Iterator[None]:
    """Let the smallest packs have several segments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_module, "SEGMENT_ENTRIES", 1)
        patch.setattr(entries_module, "LEFT_OPEN_MAX", 0)
        yield


@settings(max_examples=200, database=None)
@given(st.lists(events, max_size=20), st.sampled_from([1, 2, 128]))
def test_a_pack_that_closes_its_entries_lives_as_one_that_does_not(
    events: list[tuple[Any, ...]], segment_entries: int
) -> None:
    """Whatever happens, and whoever reads it meanwhile, each message is the same in both."""
    usual = Life()
    closing = Life()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries_module, "SEGMENT_ENTRIES", segment_entries)
        patch.setattr(entries_module, "LEFT_OPEN_MAX", 0)
        for event in events:
            closing.close()
            for life in (usual, closing):
                life.happen(event)
            closing.close()
            closing.pack.entries.is_reading = lambda: True

            assert len(closing.pack.messages) == len(usual.pack.messages)
            assert look(closing.pack) == look(usual.pack)
            assert [closing.pack.messages.find(i) for i in IDS] == [usual.pack.messages.find(i) for i in IDS]
            assert closing.pack.messages.summary() == usual.pack.messages.summary()
            assert closing.pack.messages.counts(NOW + 5) == usual.pack.messages.counts(NOW + 5)

            closing.pack.entries.is_reading = lambda: False
        for life in (usual, closing):
            life.end_batches()
        closing.close()

    assert _sort(dump(closing.pack)) == _sort(dump(usual.pack))


def _sort(wire: dict[str, Any]) -> dict[str, Any]:
    return wire | {"entries": sorted(wire["entries"])}


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("payload", [None, 2**70, -0.0, 1e308, "ünï", {"b": [1, {"a": True}], "a": 1.5}])
def test_what_is_closed_comes_back(payload: Any) -> None:
    """With the same payloads, number for number, also after a second round in the same segment."""
    given = [entry(name, NOW + HOUR, payload=payload) for name in ("b", "a", "c")]
    entries = PackEntries(given[:2], "short")
    entries.close(NOW, SPREAD)
    entries.close(NOW, SPREAD)  # of what is closed there is nothing to do
    entries["c"] = given[2]
    entries.close(NOW, SPREAD)

    assert len(entries) == 3
    assert repr(list(entries.read())) == repr(given)


@pytest.mark.usefixtures("small_segments")
@given(st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0, 1e7), min_size=1))
def test_each_message_is_found_by_its_id(waits: dict[str, float]) -> None:
    """Whatever characters it has, and if others have the same ones in their payloads."""
    payload = [[message_id, "x"] for message_id in waits]
    entries = PackEntries([entry(i, NOW + wait, payload=payload) for i, wait in waits.items()], "short")
    for message_id in waits:
        entries.close(NOW, SPREAD)
        found = entries.get(message_id)
        assert found is not None
        assert found[ID] == message_id

    assert entries.get("not here") is None
    assert len(entries) == len(waits)


@pytest.mark.usefixtures("small_segments")
def test_ids_with_one_hash_are_two_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash only says where to look: what is another one's is not given, and what is here is found."""

    def hash_alike(_: str) -> int:
        return 7

    monkeypatch.setattr(entries_module, "hash", hash_alike, raising=False)
    entries = PackEntries([entry("a", NOW + HOUR), entry("b", NOW + 9 * HOUR)], "short")
    entries.close(NOW, SPREAD)

    assert entries.get("c") is None
    assert entries["b"] == entry("b", NOW + 9 * HOUR)
    assert entries["a"] == entry("a", NOW + HOUR)


def test_a_few_new_messages_open_nothing_that_sleeps() -> None:
    """A pack that gets a few at a time would else open and close all that it has each time."""
    entries = PackEntries([entry(f"m{n}", NOW + n) for n in range(3600)], "short")
    entries.close(NOW, SPREAD)
    for n in range(8):
        assert entries.get(f"new{n}") is None
        entries[f"new{n}"] = entry(f"new{n}", NOW + HOUR)
    entries.close(NOW, SPREAD)

    assert len(entries) == 3608
    assert len(vars(entries)["_open"]) == 8


def test_a_wake_opens_what_is_due_and_little_else() -> None:
    """What sleeps for longer stays closed, so that a wake costs no more with ten times as much asleep."""
    entries = PackEntries([entry(f"m{n}", NOW + n) for n in range(3600)], "short")
    entries.close(NOW, SPREAD)
    for minutes in range(0, 60, 5):
        now = NOW + 60 * minutes
        opened = list(entries.open_due(now))
        due = [e[ID] for e in opened if e[DUE] <= now * 1000]

        assert len(due) == (300 if minutes else 1)
        assert len(opened) <= len(due) + 3600 / 8
        for message_id in due:
            del entries[message_id]
        entries.close(now, SPREAD)


@pytest.mark.usefixtures("small_segments")
def test_what_is_parked_or_paused_is_not_opened() -> None:
    """It is due for ever, and would be opened at each wake."""
    entries = PackEntries([entry("parked", parked_reason="bad"), entry("paused", is_paused=True), entry("a")], "short")
    entries.close(NOW, SPREAD)

    assert [each[ID] for each in entries.open_due(NOW + HOUR)] == ["a"]


def test_who_only_reads_leaves_the_entries_closed() -> None:
    """Else one look at each of many packs would need the memory that they have saved."""
    entries = PackEntries([entry("a", NOW + HOUR)], "short")
    entries.close(NOW, SPREAD)
    entries.is_reading = lambda: True

    assert entries.get("a") is not entries.get("a")
    assert entries.get("a") == entry("a", NOW + HOUR)
    assert list(entries.open_due(NOW)) == []

    entries.is_reading = lambda: False
    assert entries.get("a") is entries.get("a")


def test_a_pack_says_about_how_much_memory_it_takes() -> None:
    """It takes most while its messages are open, with long payloads more, and little while it sleeps."""
    small = hold(*(entry(f"m{n}", NOW + HOUR) for n in range(100)))
    large = hold(*(entry(f"m{n}", NOW + HOUR, payload={"text": "x" * 1000}) for n in range(100)))
    open_bytes = [small.messages.held_bytes, large.messages.held_bytes]

    for pack in (small, large):
        pack.entries.close(NOW, SPREAD)
    closed_bytes = [small.messages.held_bytes, large.messages.held_bytes]

    assert open_bytes[0] > 100 * entries_module.OPEN_BYTES
    assert open_bytes[1] > open_bytes[0] + 100_000
    assert all(closed < opened / 5 for closed, opened in zip(closed_bytes, open_bytes, strict=True))
