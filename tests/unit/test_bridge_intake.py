"""The record scheduler: order per key, places for all, and partitions that pause before memory does."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from starter.bridge.offsets import Partition
from starter.bridge.pending_record import PendingRecord
from starter.bridge.record_scheduler import InFlightLimits, RecordScheduler
from starter.records.record import Record

FEEDS = Partition("feeds", 0)
PRICES = Partition("prices", 0)
ORDERS = Partition("orders", 0)
WIDE = InFlightLimits(100, 100, partition_high=100, partition_low=100, total_high=300, total_low=300)


def make(key: bytes | None, offset: int, partition: Partition = FEEDS, epoch: int = 1) -> PendingRecord:
    """Give a record as the record scheduler gets it."""
    return PendingRecord(Record(*partition, offset, 0, None, None), partition, epoch, key)


def hold(limits: InFlightLimits, *partitions: Partition) -> RecordScheduler:
    """Make a record scheduler that holds partitions under the epoch 1."""
    scheduler = RecordScheduler(limits)
    scheduler.assign(partitions, 1)
    return scheduler


def offer(
    scheduler: RecordScheduler, keys: str, partition: Partition = FEEDS, *, epoch: int = 1, start: int = 0
) -> int:
    """Offer a record per letter, `-` for one without a key; says how many were held."""
    records = [
        make(None if key == "-" else key.encode(), offset, partition, epoch) for offset, key in enumerate(keys, start)
    ]
    return sum(map(scheduler.offer, records))


def waiting(scheduler: RecordScheduler) -> int:
    """Count the records of all partitions that have not begun."""
    return sum(scheduler.load_of(partition).waiting for partition in (FEEDS, PRICES, ORDERS))


def rounds(scheduler: RecordScheduler) -> list[list[int]]:
    """Take and finish until nothing is left; gives the offsets that began together."""
    found: list[list[int]] = []
    while taken := scheduler.take():
        found.append([record.offset for record in taken])
        for record in taken:
            assert scheduler.finished(record)
    return found


@pytest.mark.parametrize(
    ("keys", "began"),
    [
        pytest.param("abc", [[0, 1, 2]], id="different keys go together"),
        pytest.param("aaa", [[0], [1], [2]], id="one key goes one after the other"),
        pytest.param("aabab", [[0, 2], [1, 4], [3]], id="a busy key holds no other up"),
        pytest.param("---", [[0, 1, 2]], id="no key, nothing to wait for"),
        pytest.param("a-a-", [[0, 1, 3], [2]], id="both beside each other"),
    ],
)
def test_records_of_one_key_go_one_after_the_other(keys: str, began: list[list[int]]) -> None:
    """In the order of their offsets, with all other keys beside them."""
    scheduler = hold(WIDE, FEEDS)
    offer(scheduler, keys)

    assert rounds(scheduler) == began


@pytest.mark.parametrize(
    ("limits", "began"),
    [
        (replace(WIDE, in_flight_per_partition=2), [[0, 10, 1, 11], [2, 12]]),
        (replace(WIDE, in_flight=3), [[0, 10, 1], [11, 2, 12]]),
        (replace(WIDE, in_flight=1), [[0], [10], [1], [11], [2], [12]]),
    ],
)
def test_places_are_limited_and_partitions_take_turns(limits: InFlightLimits, began: list[list[int]]) -> None:
    """One bound a partition, one bound for all, and no partition waits while another has two turns."""
    scheduler = hold(limits, FEEDS, PRICES)
    offer(scheduler, "abc", FEEDS)
    offer(scheduler, "abc", PRICES, start=10)

    assert rounds(scheduler) == began


def test_what_was_received_first_begins_first_also_after_waiting_for_its_key() -> None:
    """The oldest record is what holds the commit up, so it never queues behind younger ones."""
    scheduler = hold(replace(WIDE, in_flight=1), FEEDS)
    offer(scheduler, "aaabc")

    assert rounds(scheduler) == [[0], [1], [2], [3], [4]]


def test_a_full_partition_pauses_and_resumes_when_it_has_room_again() -> None:
    """Above the high mark it pauses; only below the low one does it go on."""
    scheduler = hold(replace(WIDE, partition_high=4, partition_low=2), FEEDS, PRICES)
    assert scheduler.pausing == set()
    offer(scheduler, "abcd")
    assert scheduler.pausing == set()
    offer(scheduler, "e", start=4)
    assert scheduler.pausing == {FEEDS}

    pausing: list[bool] = []
    for record in scheduler.take():
        pausing.append(FEEDS in scheduler.pausing)
        scheduler.finished(record)

    assert pausing == [True, True, True, True, False]


def test_too_many_records_of_all_pause_every_partition() -> None:
    """Also one that has given nothing yet, until there is room for all again."""
    scheduler = hold(replace(WIDE, total_high=5, total_low=3), FEEDS, PRICES, ORDERS)
    offer(scheduler, "abc", FEEDS)
    offer(scheduler, "abc", PRICES)
    assert scheduler.pausing == {FEEDS, PRICES, ORDERS}

    full: list[bool] = []
    for record in scheduler.take():
        full.append(scheduler.pausing != set())
        scheduler.finished(record)

    assert full == [True, True, True, True, False, False]


def test_other_limits_count_from_now_on() -> None:
    """Fewer places: nothing new begins until enough has ended, and full partitions pause; more: it goes on at once."""
    scheduler = hold(WIDE, FEEDS)
    offer(scheduler, "abcdef")
    taken = scheduler.take()
    offer(scheduler, "ghi", start=6)
    scheduler.resize(InFlightLimits(4, 4, partition_high=4, partition_low=4, total_high=4, total_low=4))
    closed = (scheduler.take(), scheduler.pausing)
    for record in taken[:3]:
        scheduler.finished(record)
    after_three = [record.offset for record in scheduler.take()]
    scheduler.resize(WIDE)

    assert closed == ([], {FEEDS})
    assert after_three == [6]
    assert [record.offset for record in scheduler.take()] == [7, 8]
    assert scheduler.pausing == set()


def test_a_blocked_partition_begins_nothing_while_others_go_on() -> None:
    """It pauses, says why, and goes on where it was once it is unblocked."""
    scheduler = hold(WIDE, FEEDS, PRICES)
    offer(scheduler, "aab", FEEDS)
    offer(scheduler, "ab", PRICES, start=10)
    began = scheduler.take()
    scheduler.block(FEEDS, "feeds.dlq refuses records")
    for record in began:
        scheduler.finished(record)
    offer(scheduler, "c", PRICES, start=12)

    assert (scheduler.blocked, scheduler.pausing) == ({FEEDS: "feeds.dlq refuses records"}, {FEEDS})
    assert rounds(scheduler) == [[12]]
    scheduler.unblock(FEEDS)
    assert (scheduler.blocked, scheduler.pausing) == ({}, set())
    assert rounds(scheduler) == [[1]]


def test_what_is_stuck_in_a_blocked_partition_takes_no_place_of_others() -> None:
    """Neither a place to begin nor room to be held, however many partitions are blocked."""
    scheduler = hold(replace(WIDE, in_flight=2, total_high=4, total_low=1), FEEDS, PRICES)
    offer(scheduler, "abcde", FEEDS)
    stuck = scheduler.take()
    assert scheduler.pausing == {FEEDS, PRICES}
    scheduler.block(FEEDS, "no leader")
    offer(scheduler, "abc", PRICES, start=10)

    assert scheduler.pausing == {FEEDS}
    assert rounds(scheduler) == [[10, 11], [12]]
    assert (scheduler.in_flight, waiting(scheduler)) == (2, 3)
    scheduler.unblock(FEEDS)
    offer(scheduler, "d", PRICES, start=13)
    assert (scheduler.pausing, scheduler.take()) == ({FEEDS, PRICES}, [])
    assert [scheduler.finished(record) for record in stuck] == [True, True]
    assert rounds(scheduler) == [[2, 13], [3, 4]]


def test_a_revoked_partition_drops_what_has_not_begun() -> None:
    """It says what is still under way, and its places are free again once that has ended."""
    scheduler = hold(replace(WIDE, in_flight=2), FEEDS, PRICES)
    offer(scheduler, "abcd", FEEDS)
    began = scheduler.take()
    scheduler.block(FEEDS, "no leader")
    under_way = scheduler.revoke([FEEDS, ORDERS])
    offer(scheduler, "a", PRICES)

    assert under_way == began
    assert (waiting(scheduler), scheduler.blocked, scheduler.pausing) == (1, {}, set())
    assert scheduler.take() == []
    assert [scheduler.finished(record) for record in began] == [True, True]
    assert rounds(scheduler) == [[0]]
    assert (scheduler.in_flight, waiting(scheduler)) == (0, 0)


def test_what_a_new_assignment_drops_of_a_blocked_partition_never_counts() -> None:
    """Not even for a moment, which would pause all others until half of what they hold is done."""
    scheduler = hold(replace(WIDE, total_high=3, total_low=1), FEEDS, PRICES)
    offer(scheduler, "ab", FEEDS)
    scheduler.block(FEEDS, "no leader")
    offer(scheduler, "abc", PRICES)
    scheduler.assign([FEEDS], 2)

    assert (scheduler.pausing, waiting(scheduler)) == (set(), 3)


def test_a_key_keeps_its_order_through_a_rebalance() -> None:
    """A record that comes again waits for itself: the handling before the rebalance is not over yet."""
    scheduler = hold(WIDE, FEEDS)
    offer(scheduler, "ab")
    began = scheduler.take()
    scheduler.revoke([FEEDS])
    scheduler.assign([FEEDS], 2)
    assert offer(scheduler, "abc", epoch=2) == 3

    assert [(record.epoch, record.key) for record in scheduler.take()] == [(2, b"c")]
    scheduler.finished(began[1])
    assert [(record.epoch, record.key) for record in scheduler.take()] == [(2, b"b")]
    scheduler.finished(began[0])
    assert [(record.epoch, record.key) for record in scheduler.take()] == [(2, b"a")]


@pytest.mark.parametrize(
    ("partition", "epoch", "start"),
    [
        pytest.param(PRICES, 1, 5, id="a partition that is not held"),
        pytest.param(FEEDS, 0, 5, id="an older epoch"),
        pytest.param(FEEDS, 2, 5, id="an epoch still to come"),
        pytest.param(FEEDS, 1, 1, id="an offset that was offered"),
        pytest.param(FEEDS, 1, 0, id="one below"),
    ],
)
def test_an_offer_that_belongs_nowhere_changes_nothing(partition: Partition, epoch: int, start: int) -> None:
    """What a consumer still gives of a partition that has gone is dropped, and so is what it gives twice."""
    scheduler = hold(WIDE, FEEDS)
    offer(scheduler, "ab")

    assert offer(scheduler, "c", partition, epoch=epoch, start=start) == 0
    assert (waiting(scheduler), rounds(scheduler)) == (2, [[0, 1]])


def test_finishing_what_is_not_under_way_changes_nothing() -> None:
    """Before its turn, twice, or an equal record that is another object."""
    scheduler = hold(WIDE, FEEDS)
    records = [make(b"a", 0), make(b"a", 1)]
    for record in records:
        scheduler.offer(record)
    assert scheduler.take() == records[:1]

    assert [scheduler.finished(record) for record in (records[1], make(b"a", 0))] == [False, False]
    assert [scheduler.finished(records[0]), scheduler.finished(records[0])] == [True, False]
    assert scheduler.take() == records[1:]


def test_a_partition_that_is_not_held_is_not_blocked() -> None:
    """Nor unblocked."""
    scheduler = hold(WIDE, FEEDS)
    scheduler.block(PRICES, "gone")

    assert scheduler.blocked == {}
    scheduler.unblock(PRICES)
    assert scheduler.blocked == {}


TIGHT = InFlightLimits(2, 3, partition_high=5, partition_low=3, total_high=8, total_low=5)
partitions = st.sampled_from([FEEDS, PRICES, ORDERS])


class Work(RuleBasedStateMachine):
    """A record scheduler through records, ends, blocks and rebalances, beside lists of what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = RecordScheduler(TIGHT)
        self.epochs: dict[Partition, int] = {}
        self.epoch = 0
        self.waiting: list[PendingRecord] = []
        self.under_way: list[PendingRecord] = []
        self.blocked: set[Partition] = set()
        self.over: set[Partition] = set()
        self.is_full = False
        self.last: dict[Partition, int] = {}

    def count(self, records: list[PendingRecord]) -> int:
        """Count those that take places: not of blocked partitions."""
        return sum(record.partition not in self.blocked for record in records)

    def note_load(self) -> None:
        """Move the marks."""
        loads = Counter(record.partition for record in self.waiting + self.under_way)
        for partition in self.epochs:
            if loads[partition] < TIGHT.partition_low:
                self.over.discard(partition)
        total = self.count(self.waiting + self.under_way)
        self.is_full = total > TIGHT.total_high or (self.is_full and total >= TIGHT.total_low)

    @rule(partition=partitions, keys=st.lists(st.sampled_from([b"a", b"a", b"b", b"c", None]), min_size=1, max_size=4))
    def offer(self, partition: Partition, keys: list[bytes | None]) -> None:
        """Offer records."""
        for key in keys:
            offset = self.last[partition] = self.last.get(partition, 0) + 2
            epoch = self.epochs.get(partition, self.epoch)
            record = make(key, offset, partition, epoch)
            assert self.scheduler.offer(record) == (partition in self.epochs)
            assert not self.scheduler.offer(make(key, offset + 1, partition, epoch - 1))
            if partition in self.epochs:
                self.waiting.append(record)
                if [p.partition for p in self.waiting + self.under_way].count(partition) > TIGHT.partition_high:
                    self.over.add(partition)
            self.note_load()

    def may_begin(self) -> list[PendingRecord]:
        """Give all that nothing holds back but the places of all partitions together."""
        busy = {(record.partition, record.key) for record in self.under_way}
        counts = Counter(record.partition for record in self.under_way)
        found: list[PendingRecord] = []
        for record in self.waiting:
            is_free = record.key is None or (record.partition, record.key) not in busy
            has_place = counts[record.partition] < TIGHT.in_flight_per_partition
            if is_free and has_place and record.partition not in self.blocked:
                found.append(record)
        return found

    @rule()
    def take(self) -> None:
        """Take: each may begin, is the first of its partition that may, and nothing that may is left behind."""
        for record in self.scheduler.take():
            candidates = [p for p in self.may_begin() if p.partition == record.partition]
            assert record is candidates[0]
            assert self.count(self.under_way) < TIGHT.in_flight
            self.waiting.remove(record)
            self.under_way.append(record)

        assert self.count(self.under_way) >= TIGHT.in_flight or self.may_begin() == []

    @rule(which=st.integers(0, 100), times=st.integers(1, 4))
    def finish(self, which: int, times: int) -> None:
        """End some that are under way."""
        for _ in range(min(times, len(self.under_way))):
            record = self.under_way.pop(which % len(self.under_way))
            assert self.scheduler.finished(record)
            assert not self.scheduler.finished(record)
            self.note_load()

    @initialize()
    def assign_all(self) -> None:
        """Begin with all partitions held."""
        self.rebalance(set(), {FEEDS, PRICES, ORDERS})

    @rule(revoked=st.sets(partitions, max_size=2), assigned=st.sets(partitions, max_size=2))
    def rebalance(self, revoked: set[Partition], assigned: set[Partition]) -> None:
        """Give partitions away and begin anew with others, or the same, or some that were held all the time."""
        left = self.scheduler.revoke(revoked)
        assert Counter(left) == Counter(record for record in self.under_way if record.partition in revoked)
        self.forget(revoked)
        for partition in revoked:
            self.epochs.pop(partition, None)
        self.epoch += 1
        self.scheduler.assign(assigned, self.epoch)
        self.forget(assigned)
        self.epochs |= dict.fromkeys(assigned, self.epoch)

    def forget(self, chosen: set[Partition]) -> None:
        """Drop what a rebalance drops."""
        self.blocked -= chosen
        self.over -= chosen
        self.waiting = [record for record in self.waiting if record.partition not in chosen]
        self.note_load()
        for partition in chosen:
            self.last.pop(partition, None)

    @rule(partition=partitions)
    def turn(self, partition: Partition) -> None:
        """Block a partition, or unblock it."""
        if partition in self.blocked:
            self.scheduler.unblock(partition)
            self.blocked.discard(partition)
        else:
            self.scheduler.block(partition, "refused")
            self.blocked |= {partition} & self.epochs.keys()
        self.note_load()

    @invariant()
    def agrees_with_the_lists(self) -> None:
        """It counts and pauses as the lists say, and no two of one key are ever under way."""
        held = set(self.epochs)
        pausing = held if self.is_full else self.over | self.blocked
        keys = [(record.partition, record.key) for record in self.under_way if record.key is not None]

        assert (waiting(self.scheduler), self.scheduler.in_flight) == (len(self.waiting), len(self.under_way))
        assert self.scheduler.pausing == pausing
        assert set(self.scheduler.blocked) == self.blocked
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        """Reach the end: once nothing is blocked, all that is held begins and ends, and every partition resumes."""
        for partition in list(self.blocked):
            self.turn(partition)
        while self.waiting or self.under_way:
            self.take()
            assert self.under_way
            self.finish(0, 1)
        self.agrees_with_the_lists()

        assert self.scheduler.pausing == set()


def test_any_work_goes_on_in_order_within_its_limits() -> None:
    """Through blocks and rebalances at any moment, against a model that searches lists; nothing waits for ever."""
    run_state_machine_as_test(
        Work,
        # no shrinking: it takes longer than a test may
        settings=settings(max_examples=80, stateful_step_count=40, phases=[Phase.generate], database=None),
    )
