"""Where a message lives, and the hash that spreads messages the same way everywhere."""

import math
from itertools import pairwise

import pytest

from shared.lanes import prefix_of, task_queue
from shared.messages.placement import (
    Layout,
    PackSpread,
    count_packs,
    find_next_count,
    identity_of,
    layout_workflow_id,
    pack_index,
    pack_share,
    pack_workflow_id,
    split_from,
    unit_hash,
    workflow_id,
)


@pytest.mark.parametrize(
    ("kind", "message_id", "expected"),
    [
        ("feed", "a", "feed:a"),
        ("feed", "a:b:c", "feed:a:b:c"),
        ("feed", ":", "feed::"),
        ("feed", "https://example.org/x?y=z", "feed:https://example.org/x?y=z"),
        ("f.e-e_d", "\u20ac \U0001f42d", "f.e-e_d:\u20ac \U0001f42d"),
    ],
)
def test_a_workflow_id_splits_back_into_its_identity(kind: str, message_id: str, expected: str) -> None:
    """A kind never holds a colon, so ids may hold as many as they like."""
    assert workflow_id(kind, message_id) == expected
    assert identity_of(expected) == (kind, message_id)


@pytest.mark.parametrize("prefix", ["dormice", "a-b-c", ""])
def test_a_task_queue_gives_its_prefix_back(prefix: str) -> None:
    """A prefix may hold dashes itself: the lane is what follows the last one."""
    assert prefix_of(task_queue(prefix, "long")) == prefix


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0.8931675160897388),
        ("feed:a", 0.5408583227383682),
        ("feed:b", 0.1738798051903122),
        ("feed:\u20ac", 0.24826108917749723),
        ("feed:a:3:1", 0.8175528370271733),
    ],
)
def test_the_hash_is_the_same_on_every_machine(text: str, expected: float) -> None:
    """Known texts keep their place for ever: due times in histories depend on it."""
    assert unit_hash(text) == expected


def test_the_hash_spreads_ids_evenly_between_zero_and_one() -> None:
    """10,000 ids fill 100 equal buckets evenly: chi-square with 99 degrees of freedom stays in its normal range."""
    hashes = [unit_hash(f"feed:{number}") for number in range(10_000)]
    buckets = [0] * 100
    for value in hashes:
        buckets[math.floor(value * 100)] += 1

    assert min(hashes) >= 0
    assert max(hashes) < 1
    assert 50 < sum((count - 100) ** 2 / 100 for count in buckets) < 160


def test_neighbouring_ids_do_not_lie_side_by_side() -> None:
    """Counted-up ids of one batch are spread like any others: neighbours are a third apart on average."""
    hashes = [unit_hash(f"feed:{number}") for number in range(10_000)]
    gaps = [abs(a - b) for a, b in pairwise(hashes)]

    assert 0.32 < sum(gaps) / len(gaps) < 0.35


def test_a_herd_is_spread_over_its_tolerance_pack_by_pack() -> None:
    """The messages of one pack stay together; what the pack may wait for more of them is left behind the last place."""
    places = [PackSpread.of("feed", index, 300.0)(1500.0) for index in range(1000)]
    per_minute = [sum(60 * n <= place < 60 * (n + 1) for place in places) for n in range(20)]

    assert sum(per_minute) == 1000
    assert min(per_minute) > 25, per_minute
    assert PackSpread.of("feed", 0, 300.0) == PackSpread(0.09808228137474129, 300.0)
    assert PackSpread.of("feed", 0, 300.0)(200.0) == 0


def test_packs_that_fall_due_together_do_not_wake_together() -> None:
    """Each waits for more as long as its name says, from half to nine tenths of what it may."""
    spreads = [PackSpread.of("feed", index, 300.0) for index in range(1000)]
    waits = [spread.limit(300_000) * spread.patience / 300_000 for spread in spreads]

    assert 0.5 <= min(waits) < 0.51
    assert 0.899 < max(waits) <= 0.9


PACK_COUNTS = (1, 2, 100, 101, 10_000, 1_000_000)


@pytest.mark.parametrize(
    ("message_id", "expected"),
    [
        ("", [0, 0, 52, 52, 4788, 635572]),
        ("a", [0, 1, 47, 47, 559, 410159]),
        ("feed-1", [0, 1, 37, 37, 9253, 992293]),
        ("https://example.org/x?y=z", [0, 0, 42, 42, 4714, 709226]),
        ("\u20ac \U0001f42d", [0, 1, 63, 63, 3071, 297983]),
    ],
)
def test_the_pack_of_an_id_is_the_same_on_every_machine(message_id: str, expected: list[int]) -> None:
    """Known ids keep their pack for ever: a process that placed them elsewhere would start them a second time."""
    assert [pack_index(message_id, packs) for packs in PACK_COUNTS] == expected


@pytest.mark.parametrize("packs", [1, 2, 3, 10, 63, 64, 100])
def test_one_more_pack_takes_half_of_one_and_nothing_of_any_other(packs: int) -> None:
    """Linear hashing: a new pack is the split of a known one, so only that one has to be told."""
    pairs = [(pack_index(f"m{n}", packs), pack_index(f"m{n}", packs + 1)) for n in range(10_000)]
    held = [new for old, new in pairs if old == split_from(packs)]

    assert {old for old, new in pairs if new != old} == {split_from(packs)}
    assert {new for old, new in pairs if new != old} == {packs}
    assert held.count(packs) / len(held) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(("packs", "wanted"), [(1, 1), (1, 2), (3, 100), (5, 6), (64, 1000), (100, 1_000_000)])
def test_a_kind_grows_in_steps_that_split_each_pack_once_at_most(packs: int, wanted: int) -> None:
    """None of the packs that a step splits is added by it, so all can be split side by side."""
    while packs < wanted:
        count = find_next_count(packs, wanted, 64)
        parents = [split_from(index) for index in range(packs, count)]
        assert packs < count <= packs + 64
        assert len(set(parents)) == len(parents)
        assert max(parents) < packs
        packs = count

    assert packs == wanted


@pytest.mark.parametrize("packs", [1, 2, 3, 5, 8, 10, 63, 64, 65, 100])
def test_a_share_says_how_many_ids_a_pack_holds(packs: int) -> None:
    """All shares are one, and each is what 50,000 ids give, within five standard deviations of their number."""
    ids = 50_000
    found = [0] * packs
    for number in range(ids):
        found[pack_index(f"m{number}", packs)] += 1

    shares = [pack_share(index, packs) for index in range(packs)]
    assert sum(shares) == 1
    for count, share in zip(found, shares, strict=True):
        assert abs(count - ids * share) <= 5 * math.sqrt(ids * share)


@pytest.mark.parametrize(
    ("messages", "size", "packs"),
    [
        (0, 1000, 1),
        (750, 1000, 1),
        (751, 1000, 2),
        (1500, 1000, 2),
        (10_000_000, 1000, 16_384),
        (5, 1, 8),
        (10**12, 1, 1_000_000),
    ],
)
def test_as_many_packs_are_counted_as_hold_the_messages(messages: int, size: int, packs: int) -> None:
    """A power of two, so that all hold as many; and none is so full that the kind would grow at once."""
    assert count_packs(messages, size) == packs


def test_packs_are_filled_evenly() -> None:
    """20,000 counted-up ids over 64 packs: chi-square with 63 degrees of freedom stays in its usual range."""
    packs = [0] * 64
    for number in range(20_000):
        packs[pack_index(f"m{number}", 64)] += 1

    assert 32 < sum((count - 312.5) ** 2 / 312.5 for count in packs) < 105


def test_the_names_of_packs_are_no_messages_name() -> None:
    """A kind never holds a tilde."""
    assert [pack_workflow_id("feed", 7), layout_workflow_id("feed")] == ["feed~7", "feed~"]


def test_a_layout_survives_the_memo_it_is_kept_in() -> None:
    """What the first start of a kind fixed is what every process reads; the form never changes."""
    layout = Layout("feed", "short", 200, 1000, 300.0)
    memo = {"lane": "short", "packs": 200, "size": 1000, "coalesce": 300.0}

    assert layout.dump() == memo
    assert Layout.load("feed", memo) == layout
