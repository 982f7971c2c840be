"""Offsets: which position may be committed, so that no record is skipped and few are read twice."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from shared.errors import RetryLater

NOTHING = -1  # below every offset of Kafka
NO_TIMESTAMP = -1  # Kafka's value for a record without a timestamp


class Partition(NamedTuple):
    """A partition of a topic; equal to a Kafka client's own TopicPartition, because both are plain pairs."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


class UnacknowledgedRecord(NamedTuple):
    """When an unacknowledged record was received, in monotonic seconds, and the record's own timestamp in ms."""

    received_at: float
    timestamp: int


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition, beside what the partition is now."""

    offset: int | None
    """None where nothing was ever committed."""
    noted_id: str
    """The id of the topic that it was committed for; empty where nobody noted it."""
    topic_id: str
    """The id of the topic that has the name now; empty where the broker knows none."""
    end: int | None = None
    """The end of the partition; None where nobody asked for it."""

    @property
    def is_of_older_topic(self) -> bool:
        """Whether it counts in a topic that was deleted, and not in the one that has its name now."""
        return bool(self.noted_id and self.topic_id) and self.noted_id != self.topic_id

    @property
    def is_beyond_end(self) -> bool:
        """Whether the partition has not come so far: its log was cut, or it was made again on a broker without ids."""
        if self.offset is None or self.end is None or self.is_of_older_topic:
            return False
        return self.offset > self.end

    def describe_flaw(self, partition: "Partition") -> str:
        """Say in a sentence what is wrong with it and what to do; empty when nothing is."""
        if self.is_of_older_topic:
            flaw = f"{partition}: offset {self.offset} is committed of an older topic of this name, which was deleted"
            return f"{flaw}; bridges begin with the first record of the new one"
        if self.is_beyond_end and self.offset is not None:
            return describe_cut(partition, self.offset, f"the partition ends at {self.end}")
        return ""


def describe_cut(partition: "Partition", committed: int, seen: str) -> str:
    """Say in a sentence that a partition has lost what a group has read of it, as `seen` shows, and what to do."""
    flaw = f"{partition}: offset {committed} is committed, but {seen}, so its log was cut or the topic was made again"
    flaw += ", and messages would take its new records for old ones"
    return f"{flaw}; read a topic that was made again under another name, else reset the group's offsets"


_NOTE = "topic-id="


def write_note(topic_id: str) -> str:
    """Give the text that is stored with a committed offset: of which topic it is."""
    return _NOTE + topic_id if topic_id else ""


def read_note(text: str) -> str:
    """Give the topic's id in the text that is stored with a committed offset; empty where there is none."""
    return text.removeprefix(_NOTE) if text.startswith(_NOTE) else ""


class OffsetsWentBack(RetryLater):
    """An old offset came again: the partition repeated a record, or its log was cut and it gave another one."""


class PartitionOffsets:
    """The unacknowledged records of one partition under one assignment, and the position to commit.

    Noting a record takes constant time. Finding the first outstanding one has to skip those acknowledged lately, so it
    is done once a second. Gaps between offsets are normal (compaction, transaction markers): neighbours tell nothing.
    """

    __slots__ = ("_committed", "_last", "_next", "_outstanding", "begin", "epoch", "partition", "topic_id")

    def __init__(self, partition: Partition, epoch: int = 0) -> None:
        self.partition = partition
        self.epoch = epoch
        self.topic_id: str | None = None
        """The id of the partition's topic, empty where the broker knows none; None before the broker was asked."""
        self.begin = 0
        """The offset that was committed when it was assigned; 0 where nothing was."""
        self._outstanding: dict[int, UnacknowledgedRecord] = {}
        self._last = UnacknowledgedRecord(0.0, NO_TIMESTAMP)
        self._next = NOTHING
        self._committed = NOTHING

    def received(self, offset: int, now: float, timestamp: int = NO_TIMESTAMP) -> None:
        """Note a record; `now` is in monotonic seconds, `timestamp` the record's own in milliseconds since 1970.

        Raises OffsetsWentBack when this offset or a later one was noted before: what to commit would be a guess then.
        """
        if offset < self._next:
            raise OffsetsWentBack(
                f"{self.partition}: offset {offset} came after {self._next - 1}, so its log was cut or the consumer "
                "was put back; begin again from the committed position under a new assignment"
            )
        self._next = offset + 1
        if timestamp != self._last.timestamp or now != self._last.received_at:  # else share one object
            self._last = UnacknowledgedRecord(now, timestamp)

        self._outstanding[offset] = self._last

    def acknowledged(self, offset: int) -> bool:
        """Note that a record needs no more work; says whether it was outstanding."""
        return self._outstanding.pop(offset, None) is not None

    def advance(self, to: int) -> None:
        """Note that the consumer moved on to an offset, past transaction markers; call `received` for records first."""
        self._next = max(self._next, to)

    def committed(self, position: int) -> None:
        """Note a committed position; one that is lower than an earlier one changes nothing."""
        self._committed = max(self._committed, position)

    @property
    def position(self) -> int | None:
        """What to commit: the first outstanding offset, else the next one; None if that is committed already.

        It is given before anything is acknowledged, too, so that a group that has never committed keeps its place.
        """
        position = next(iter(self._outstanding), self._next)
        return position if position > self._committed else None

    @property
    def reached(self) -> int | None:
        """The next offset to receive; None before anything is known."""
        return None if self._next == NOTHING else self._next

    @property
    def last_committed(self) -> int | None:
        """What this assignment committed last; None before it has committed anything."""
        return None if self._committed == NOTHING else self._committed

    def is_outstanding(self, offset: int) -> bool:
        """Say whether a record is received and not acknowledged."""
        return offset in self._outstanding

    @property
    def outstanding(self) -> int:
        """How many records are received and not acknowledged."""
        return len(self._outstanding)

    @property
    def oldest(self) -> UnacknowledgedRecord | None:
        """The first outstanding record; None without one."""
        return next(iter(self._outstanding.values()), None)


class Assignment:
    """The partitions held now, each with the epoch of its assignment; records of an older epoch no longer count.

    The epoch rises with every change; partitions not concerned keep theirs, and so their acknowledgements.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._held: dict[Partition, PartitionOffsets] = {}

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions held now."""
        return frozenset(self._held)

    def assign(self, partitions: Iterable[Partition]) -> int:
        """Begin anew with partitions, also with those already held; gives their new epoch."""
        self.epoch += 1
        for partition in partitions:
            self._held[partition] = PartitionOffsets(partition, self.epoch)
        return self.epoch

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Forget partitions; those not held are ignored. Call `to_commit` first."""
        self.epoch += 1
        for partition in partitions:
            self._held.pop(partition, None)

    def find(self, partition: Partition) -> PartitionOffsets | None:
        """Give the offsets of a partition, for noting many records at once; None when it is not held."""
        return self._held.get(partition)

    def find_all(self) -> list[PartitionOffsets]:
        """Give the offsets of all partitions held now."""
        return list(self._held.values())

    def is_current(self, offsets: PartitionOffsets) -> bool:
        """Say whether these are the offsets of a partition that is held now, of an assignment that has not ended."""
        return self._held.get(offsets.partition) is offsets

    def write_note(self, partition: Partition) -> str:
        """Give the note that stands beside a committed offset of a partition."""
        offsets = self._held.get(partition)
        return write_note((offsets and offsets.topic_id) or "")

    def refuse_other_topics(self, ids: Mapping[str, str]) -> None:
        """Raise OffsetsWentBack when a topic has another id than when its partitions were assigned."""
        for offsets in self._held.values():
            topic = offsets.partition.topic
            if offsets.topic_id and ids.get(topic, offsets.topic_id) != offsets.topic_id:
                flaw = f"topic {topic}: was deleted and made again while it was read"
                raise OffsetsWentBack(f"{flaw}; start this process again, and it begins with the new first record")

    def acknowledged(self, partition: Partition, epoch: int, offset: int) -> bool:
        """Note that a record needs no more work; returns False if the partition was reassigned since."""
        offsets = self._held.get(partition)
        return offsets is not None and offsets.epoch == epoch and offsets.acknowledged(offset)

    def is_outstanding(self, partition: Partition, epoch: int, offset: int) -> bool:
        """Say whether a record of this epoch is received and not acknowledged."""
        offsets = self._held.get(partition)
        return offsets is not None and offsets.epoch == epoch and offsets.is_outstanding(offset)

    def to_commit(self, partitions: Iterable[Partition] | None = None) -> dict[Partition, int]:
        """Give the positions worth committing, of all partitions or of some that are about to be revoked."""
        chosen = self._held if partitions is None else partitions
        held = (self._held[partition] for partition in chosen if partition in self._held)
        return {offsets.partition: position for offsets in held if (position := offsets.position) is not None}

    def committed(self, positions: Mapping[Partition, int]) -> None:
        """Note that positions were committed; partitions no longer held are ignored."""
        for partition, position in positions.items():
            if partition in self._held:
                self._held[partition].committed(position)
