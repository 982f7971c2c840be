"""Where a message lives, and the hash that spreads messages the same way everywhere."""

import math
from itertools import pairwise

import pytest

from shared.lanes import prefix_of, task_queue
from shared.placement import Placement, identity_of, place, unit_hash, workflow_id


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


def test_a_message_lives_in_its_own_workflow_on_its_lanes_queue() -> None:
    """The place follows from kind, id, lane and prefix alone."""
    assert place("feed", "a:b", "medium", "dormice") == Placement("feed:a:b", "dormice-medium")


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
    """10,000 ids fill a hundred equal buckets evenly: chi-square with 99 degrees of freedom stays in its usual range."""
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
