"""The status of a bridge: what is known of a partition at a moment, and what is not."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starter.bridge.offsets import Partition, PartitionOffsets
from starter.bridge.pending_record import PendingRecord
from starter.bridge.record_scheduler import QueueDepth, RecordScheduler
from starter.bridge.status import to_partition_status
from starter.bridge.status_document import BridgeStatus, PartitionStatus
from starter.bridge.window import limits_of
from starter.records.record import Record

FEEDS = Partition("feeds", 3)
NOW = 100.0
EPOCH = 1_800_000_000.0
"""Noon on both clocks."""
NOTHING = QueueDepth(0, 0, "")


def tell(
    offsets: PartitionOffsets, load: QueueDepth = NOTHING, *, end: int | None = None, is_paused: bool = False
) -> PartitionStatus:
    """Give the status at noon."""
    return to_partition_status(offsets, load, end=end, is_paused=is_paused, now=NOW, epoch=EPOCH)


def receive(offsets: PartitionOffsets, *numbers: int, ago: float = 0.0, age: float = 0.0) -> None:
    """Receive records some seconds ago that were then older still."""
    for number in numbers:
        offsets.received(number, NOW - ago, round((EPOCH - age) * 1000))


def test_nothing_is_known_right_after_the_assignment() -> None:
    """What nobody has told is null, and not zero."""
    assert asdict(tell(PartitionOffsets(FEEDS))) == {
        "topic": "feeds",
        "number": 3,
        "received": None,
        "committed": None,
        "end": None,
        "lag": None,
        "time_lag_seconds": None,
        "oldest_unacknowledged_seconds": 0.0,
        "in_flight": 0,
        "waiting": 0,
        "is_paused": False,
        "blocked": "",
    }


def test_lag_counts_from_what_is_committed_and_ages_from_the_first_record_outstanding() -> None:
    """Records acknowledged behind the smallest offset, or received and not committed, make neither smaller."""
    offsets = PartitionOffsets(FEEDS)
    receive(offsets, 10, ago=40, age=90)
    receive(offsets, 11, 12, ago=5, age=6)
    offsets.committed(10)
    offsets.acknowledged(11)
    before = tell(offsets, end=20)
    offsets.acknowledged(10)
    after = tell(offsets, end=20)

    assert (before.received, before.committed, before.lag) == (13, 10, 10)
    assert (before.time_lag_seconds, before.oldest_unacknowledged_seconds) == (90, 40)
    assert (after.committed, after.lag) == (10, 10)
    assert (after.time_lag_seconds, after.oldest_unacknowledged_seconds) == (6, 5)


def test_without_lag_nothing_is_late() -> None:
    """Everything is received, acknowledged and committed."""
    offsets = PartitionOffsets(FEEDS)
    receive(offsets, 0, 1, ago=1, age=1)
    offsets.acknowledged(0)
    offsets.acknowledged(1)
    offsets.committed(2)
    status = tell(offsets, end=2)

    assert (status.lag, status.time_lag_seconds, status.oldest_unacknowledged_seconds) == (0, 0, 0)


def test_an_age_that_nobody_can_know_is_null() -> None:
    """The record is not received yet, or has no timestamp."""
    offsets = PartitionOffsets(FEEDS)
    offsets.advance(5)
    offsets.committed(5)
    to_come = tell(offsets, end=9)
    offsets.received(5, NOW)
    without = tell(offsets, end=9)

    assert (to_come.lag, to_come.time_lag_seconds) == (4, None)
    assert (without.lag, without.time_lag_seconds) == (4, None)


@given(ahead=st.floats(0, 1e6), behind=st.integers(0, 10**6))
def test_no_clock_makes_anything_negative(ahead: float, behind: int) -> None:
    """A producer's clock may be ahead, and the end that the broker told last behind what is committed meanwhile."""
    offsets = PartitionOffsets(FEEDS)
    offsets.committed(10**6)
    receive(offsets, 10**6, age=-ahead)
    status = tell(offsets, end=10**6 - behind)

    assert (status.lag, status.time_lag_seconds, status.oldest_unacknowledged_seconds) == (0, 0, 0)


def test_a_blocked_partition_says_how_much_it_holds_and_why() -> None:
    """As the record scheduler has it; a partition that is not held holds nothing."""
    scheduler = RecordScheduler(limits_of(1000))
    scheduler.assign([FEEDS], 1)
    for offset in range(3):
        scheduler.offer(PendingRecord(Record(*FEEDS, offset, 0, None, None), FEEDS, 1))
    taken = scheduler.take()
    scheduler.offer(PendingRecord(Record(*FEEDS, 3, 0, None, None), FEEDS, 1))
    scheduler.finished(taken[0])
    scheduler.block(FEEDS, "the topic takes nothing")
    status = tell(PartitionOffsets(FEEDS), scheduler.load_of(FEEDS), is_paused=True)

    assert (status.in_flight, status.waiting, status.is_paused) == (2, 1, True)
    assert status.blocked == "the topic takes nothing"
    assert scheduler.load_of(Partition("elsewhere", 0)) == NOTHING


@pytest.mark.parametrize("member", [None, "one"])
def test_a_status_goes_over_the_wire_and_comes_back(member: str | None) -> None:
    """Whoever asks a bridge reads the same as it has told."""
    status = BridgeStatus(
        group="dormice",
        member=member,
        topics=("feeds",),
        partitions=(tell(PartitionOffsets(FEEDS), end=4),),
        received=4,
        outcomes={"started": 3, "dead": 1},
        throttled=1,
        retried=2,
        rebalances=3,
        commit_failures=4,
    )

    assert BridgeStatus.load(json.dumps(asdict(status)).encode()) == status
