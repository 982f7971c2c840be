"""Offsets: nothing is committed beyond a record that is not acknowledged, and the end is reached once all are."""

import pytest
from aiokafka.structs import TopicPartition
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from starter.bridge.offsets import Assignment, OffsetsWentBack, Partition, PartitionOffsets, read_note

FEEDS = Partition("feeds", 0)
PRICES = Partition("prices", 7)


def follow(*steps: tuple[str, int]) -> PartitionOffsets:
    """Let steps happen to a partition, each a second after the one before."""
    offsets = PartitionOffsets(FEEDS)
    for now, (verb, number) in enumerate(steps):
        match verb:
            case "received":
                offsets.received(number, now)
            case "acknowledged":
                offsets.acknowledged(number)
            case "advance":
                offsets.advance(number)
            case _:
                offsets.committed(number)

    return offsets


def received(*numbers: int) -> list[tuple[str, int]]:
    """Give the steps of receiving records."""
    return [("received", number) for number in numbers]


def acknowledged(*numbers: int) -> list[tuple[str, int]]:
    """Give the steps of acknowledging records."""
    return [("acknowledged", number) for number in numbers]


@pytest.mark.parametrize(
    ("steps", "position", "outstanding"),
    [
        pytest.param([], None, 0, id="nothing received, nothing to commit"),
        pytest.param(received(5), 5, 1, id="a group that never committed stays where it began"),
        pytest.param([*received(0), ("committed", 0)], None, 1, id="the very first offset, committed as a beginning"),
        pytest.param([*received(5), *acknowledged(5)], 6, 0, id="the next after the last"),
        pytest.param([*received(5, 6, 7), *acknowledged(5, 7)], 6, 1, id="up to the first that is outstanding"),
        pytest.param([*received(5, 6, 7), *acknowledged(7, 6)], 5, 1, id="any order of acknowledgements"),
        pytest.param([*received(5, 6, 7), *acknowledged(7, 6, 5)], 8, 0, id="all, from the last to the first"),
        pytest.param([*received(3, 9, 40), *acknowledged(3)], 9, 2, id="a gap is nobody's to acknowledge"),
        pytest.param([*received(3, 9, 40), *acknowledged(3, 9, 40)], 41, 0, id="gaps do not hold the end up"),
        pytest.param([*received(5), *acknowledged(5), ("committed", 6)], None, 0, id="committed once is enough"),
        pytest.param([*received(5, 6), *acknowledged(5), ("committed", 6)], None, 1, id="waiting is no news"),
        pytest.param([*received(5), ("committed", 9)], None, 1, id="never behind what was committed"),
        pytest.param([*received(5), ("committed", 9), ("committed", 2)], None, 1, id="an older commit is no step back"),
        pytest.param([("advance", 8)], 8, 0, id="a log of markers alone"),
        pytest.param([*received(5), *acknowledged(5), ("advance", 8)], 8, 0, id="a tail of markers"),
        pytest.param([*received(5), ("advance", 8)], 5, 1, id="a tail of markers behind one outstanding"),
        pytest.param([*received(5), ("advance", 8), *acknowledged(5)], 8, 0, id="and once that is acknowledged"),
        pytest.param([*received(5), ("advance", 3), *acknowledged(5)], 6, 0, id="no advance goes back"),
    ],
)
def test_the_position_is_the_first_offset_outstanding(
    steps: list[tuple[str, int]], position: int | None, outstanding: int
) -> None:
    """Or the next to come when there is none, and only while that is news."""
    offsets = follow(*steps)

    assert (offsets.position, offsets.outstanding) == (position, outstanding)


@pytest.mark.parametrize("offset", [4, 5, 6, 7, 100])
def test_an_acknowledgement_of_nothing_outstanding_does_not_count(offset: int) -> None:
    """Unknown, in a gap, repeated or still to come: it changes nothing."""
    offsets = follow(*received(5, 7, 9), *acknowledged(5, 7))

    assert not offsets.acknowledged(offset)
    assert (offsets.position, offsets.outstanding) == (9, 1)


@pytest.mark.parametrize(
    ("steps", "offset"),
    [
        (received(5), 5),
        (received(5, 9), 7),
        ([*received(5), *acknowledged(5)], 0),
        ([*received(5), ("advance", 9)], 8),
    ],
)
def test_an_offset_that_was_reached_does_not_come_again(steps: list[tuple[str, int]], offset: int) -> None:
    """A log that was cut, or a consumer put back, makes every position a guess: that is said, not passed over."""
    offsets = follow(*steps)
    before = offsets.position, offsets.outstanding

    with pytest.raises(OffsetsWentBack, match=rf"^feeds/0: offset {offset} came after .* new assignment$"):
        offsets.received(offset, 0.0)

    assert (offsets.position, offsets.outstanding) == before


def test_the_age_is_that_of_the_first_record_outstanding() -> None:
    """Records wait since they were received; without one there is no age."""
    offsets = follow(*received(5, 6, 7), *acknowledged(6))
    oldest = [offsets.oldest]
    for offset in (5, 7):
        offsets.acknowledged(offset)
        oldest.append(offsets.oldest)

    assert [record and record.received_at for record in oldest] == [0, 2, None]


def receive(assignment: Assignment, partition: Partition, offset: int, now: float) -> int | None:
    """Receive a record, unless its partition is not held; gives the epoch to acknowledge it under."""
    if (offsets := assignment.find(partition)) is None:
        return None
    offsets.received(offset, now)
    return offsets.epoch


def outstanding(assignment: Assignment) -> int:
    """Count what is outstanding in all partitions."""
    return sum(held.outstanding for partition in assignment.partitions if (held := assignment.find(partition)))


def test_a_client_finds_its_partitions_in_ours() -> None:
    """A mapping by our partitions is one by aiokafka's, both ways."""
    theirs = TopicPartition("feeds", 0)

    assert {FEEDS: 1}[Partition(*theirs)] == {theirs: 1}[FEEDS] == 1  # pyright: ignore[reportArgumentType] — that is what is tried
    assert theirs == FEEDS


def test_an_acknowledgement_from_before_a_revocation_changes_nothing() -> None:
    """The same offset, received again under a new epoch, waits for its own."""
    assignment = Assignment()
    assignment.assign([FEEDS])
    old = receive(assignment, FEEDS, 5, 0.0)
    assignment.revoke([FEEDS])
    assignment.assign([FEEDS])
    new = receive(assignment, FEEDS, 5, 1.0)
    assert old is not None
    assert new is not None

    assert not assignment.acknowledged(FEEDS, old, 5)
    assert assignment.to_commit() == {FEEDS: 5}
    assert assignment.acknowledged(FEEDS, new, 5)
    assert assignment.to_commit() == {FEEDS: 6}


def test_partitions_that_stay_keep_their_epoch() -> None:
    """A change of others makes no acknowledgement of theirs late: they would wait for it for ever."""
    assignment = Assignment()
    epoch = assignment.assign([FEEDS])
    receive(assignment, FEEDS, 5, 0.0)
    assignment.revoke([PRICES])
    assert assignment.assign([PRICES]) > epoch

    assert assignment.acknowledged(FEEDS, epoch, 5)
    assert assignment.to_commit() == {FEEDS: 6}


def test_a_partition_that_is_not_held_takes_no_part() -> None:
    """Records that come late from the consumer, their acknowledgements and commits are passed over."""
    assignment = Assignment()
    epoch = assignment.assign([FEEDS])

    assert assignment.find(PRICES) is None
    assert not assignment.acknowledged(PRICES, epoch, 5)
    assignment.committed({PRICES: 6})
    assert (assignment.to_commit([PRICES]), assignment.partitions) == ({}, {FEEDS})


def test_an_assignment_sums_up_its_partitions() -> None:
    """The positions of some or all, up to what is outstanding."""
    assignment = Assignment()
    epoch = assignment.assign([FEEDS, PRICES])
    for partition, offset, now in ((FEEDS, 5, 3.0), (PRICES, 9, 2.0), (FEEDS, 6, 4.0)):
        receive(assignment, partition, offset, now)

    assignment.acknowledged(PRICES, epoch, 9)
    assert assignment.to_commit() == {FEEDS: 5, PRICES: 10}
    assert assignment.to_commit([PRICES]) == {PRICES: 10}
    assignment.committed({PRICES: 10})
    assert assignment.to_commit() == {FEEDS: 5}


class Model:
    """One partition under one assignment, as a list that forgets nothing."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bool]] = []
        self.next = -1
        self.committed = -1

    @property
    def position(self) -> int | None:
        """What to commit, looked for from the front."""
        first = next((offset for offset, is_done in self.records if not is_done), self.next)
        return first if first > self.committed else None

    def acknowledge(self, offset: int) -> bool:
        """Mark a record as done; says whether it was not yet."""
        if (offset, False) not in self.records:
            return False
        self.records[self.records.index((offset, False))] = (offset, True)
        return True


partitions = st.sampled_from([FEEDS, PRICES])


class Consumption(RuleBasedStateMachine):
    """A consumer group's life: records, acknowledgements from any time, commits and rebalances."""

    def __init__(self) -> None:
        super().__init__()
        self.assignment = Assignment()
        self.models: dict[Partition, Model] = {}
        self.tickets: list[tuple[Partition, int, int]] = []
        self.now = 0.0

    @rule(partition=partitions, gap=st.sampled_from([0, 0, 0, 1, 17]), count=st.integers(1, 5))
    def receive(self, partition: Partition, gap: int, count: int) -> None:
        """Receive records, after a gap."""
        for _ in range(count):
            model = self.models.get(partition)
            offset = gap + max(0, model.next if model else 0)
            self.now += 1
            epoch = receive(self.assignment, partition, offset, self.now)
            assert (epoch is not None) == (model is not None)
            if model is not None and epoch is not None:
                model.records.append((offset, False))
                model.next = offset + 1
                self.tickets.append((partition, epoch, offset))

    @rule(which=st.integers(0, 1_000), times=st.integers(1, 2))
    def acknowledge(self, which: int, times: int) -> None:
        """Acknowledge a record, now and then twice, also one of an assignment of long ago."""
        if self.tickets:
            partition, epoch, offset = self.tickets[which % len(self.tickets)]
            for _ in range(times):
                is_current = (held := self.assignment.find(partition)) is not None and held.epoch == epoch
                expected = is_current and self.models[partition].acknowledge(offset)
                assert self.assignment.acknowledged(partition, epoch, offset) == expected

    @rule(partition=partitions, step=st.integers(0, 3))
    def advance(self, partition: Partition, step: int) -> None:
        """Leave markers behind."""
        if partition in self.models:
            model = self.models[partition]
            held = self.assignment.find(partition)
            assert held is not None
            model.next = max(model.next + step, step)
            held.advance(model.next)

    @rule()
    def commit(self) -> None:
        """Commit all there is."""
        positions = self.assignment.to_commit()
        self.assignment.committed(positions)
        for partition, position in positions.items():
            self.models[partition].committed = position

        assert self.assignment.to_commit() == {}

    @rule(chosen=st.sets(partitions, min_size=1))
    def assign(self, chosen: set[Partition]) -> None:
        """Begin anew with some."""
        before = self.assignment.epoch
        assert self.assignment.assign(chosen) > before
        self.models |= {partition: Model() for partition in chosen}

    @rule(chosen=st.sets(partitions, min_size=1))
    def revoke(self, chosen: set[Partition]) -> None:
        """Give some away."""
        self.assignment.revoke(chosen)
        for partition in chosen:
            self.models.pop(partition, None)

    @invariant()
    def agrees_with_the_list(self) -> None:
        """Positions are those of the list, and none lies beyond a record that is not acknowledged."""
        positions = self.assignment.to_commit()
        expected = {p: model.position for p, model in self.models.items() if model.position is not None}
        waiting = {p: [o for o, is_done in model.records if not is_done] for p, model in self.models.items()}

        assert positions == expected
        assert [p for p, position in positions.items() if any(offset < position for offset in waiting[p])] == []
        assert outstanding(self.assignment) == sum(map(len, waiting.values()))

    def teardown(self) -> None:
        """Reach the end: all is acknowledged, so all is committed."""
        for partition, epoch, offset in self.tickets:
            self.assignment.acknowledged(partition, epoch, offset)

        ends = {p: model.next for p, model in self.models.items() if model.next > model.committed}
        assert (self.assignment.to_commit(), outstanding(self.assignment)) == (ends, 0)


def test_any_consumption_commits_what_a_list_would() -> None:
    """Through gaps, repeated and late acknowledgements, and rebalances, against a model that searches a list."""
    run_state_machine_as_test(
        Consumption,
        # no shrinking: it takes longer than a test may
        settings=settings(max_examples=80, stateful_step_count=30, phases=[Phase.generate], database=None),
    )


def test_a_topic_of_another_id_ends_what_was_begun_with_the_first() -> None:
    """An id that nobody knows says nothing; the note beside a committed offset has the one it was read under."""
    assignment = Assignment()
    assignment.assign([Partition("known", 0), Partition("unknown", 0), Partition("new", 0)])
    for offsets, topic_id in zip(assignment.find_all(), ("one", "", None), strict=True):
        offsets.topic_id = topic_id
    notes = [assignment.write_note(offsets.partition) for offsets in assignment.find_all()]
    assignment.refuse_other_topics({"known": "one", "unknown": "two", "new": "two"})
    assignment.refuse_other_topics({})

    with pytest.raises(OffsetsWentBack, match=r"^topic known: was deleted and made again while it was read;"):
        assignment.refuse_other_topics({"known": "two"})
    assert [read_note(note) for note in notes] == ["one", "", ""]
    assert read_note("of another program") == ""
