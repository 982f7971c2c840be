"""The record scheduler: which received records may begin now, and which partitions must pause."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from shared.errors import InvalidSetting
from starter.bridge.offsets import NOTHING, Partition


class KeyedRecord(Protocol):
    """What must be known of a record: records with the same key begin in offset order; None means no key."""

    @property
    def partition(self) -> Partition: ...  # noqa: D102 — described above

    @property
    def key(self) -> bytes | None: ...  # noqa: D102 — described above

    @property
    def offset(self) -> int: ...  # noqa: D102 — described above


R = TypeVar("R", bound=KeyedRecord)


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """How many records may be under way, and how many may be held, waiting or under way, before partitions pause."""

    in_flight_per_partition: int
    in_flight: int
    partition_high: int
    partition_low: int
    total_high: int
    total_low: int

    def __post_init__(self) -> None:
        """Refuse limits under which nothing would ever begin or go on."""
        for name, number in asdict(self).items():
            if number < 1:
                raise InvalidSetting(f"{name}: is {number}; give 1 or more")
            if number > (high := getattr(self, name.replace("_low", "_high"))):
                raise InvalidSetting(f"{name}: is {number}, above the high mark; give {high} or less")


class QueueDepth(NamedTuple):
    """The records of a partition under way and waiting, and why none may begin; `reason` is empty while they may."""

    in_flight: int
    waiting: int
    reason: str


class _PartitionQueue(Generic[R]):
    """The held records of one partition; `load` counts all of them, `in_flight` those under way."""

    __slots__ = ("chains", "epoch", "in_flight", "is_in_turn", "last", "load", "partition", "ready", "reason")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch: int | None = None
        """None after the partition is revoked, while some of its records are still under way."""
        self.last = NOTHING
        self.reason = ""
        self.load = 0
        self.in_flight = 0
        self.is_in_turn = False
        self.ready: list[tuple[int, R]] = []
        """A heap by offset: the record received first begins first, also if it had to wait for its key."""
        self.chains: dict[bytes, deque[R] | None] = {}
        """For each key with a record that is ready or under way: the records waiting behind it."""


class RecordScheduler(Generic[R]):
    """Gives out the records of each key in offset order; different keys and partitions run in parallel.

    Partitions take turns. Records of a blocked partition that are under way do not count against the limits. A record
    is recognized by object identity.
    """

    def __init__(self, limits: InFlightLimits) -> None:
        self._limits = limits
        self._lanes: dict[Partition, _PartitionQueue[R]] = {}
        self._turns: deque[_PartitionQueue[R]] = deque()  # partitions with a record that may begin, each once
        self._under_way: dict[int, R] = {}
        self._over: set[Partition] = set()
        self._is_full = False
        self._load = self._in_flight = 0  # both exclude blocked partitions

    def resize(self, limits: InFlightLimits) -> None:
        """Use other limits from now on; records already held beyond them stay and are worked off."""
        self._limits = limits
        for lane in self._lanes.values():
            if not lane.is_in_turn:
                self._queue(lane)
        self._note_load()

    def assign(self, partitions: Iterable[Partition], epoch: int) -> None:
        """Begin anew with partitions: from now on, only records offered under this epoch count.

        Records that are still under way finish first, so that the order within their key holds.
        """
        for partition in partitions:
            lane = self._lanes.setdefault(partition, _PartitionQueue(partition))
            self._empty(lane)
            lane.epoch, lane.last = epoch, NOTHING
        self._note_load()

    def revoke(self, partitions: Iterable[Partition]) -> list[R]:
        """Drop records of partitions that have not begun; give those still under way, also of earlier assignments."""
        lanes = {self._lanes[partition] for partition in partitions if partition in self._lanes}
        for lane in lanes:
            self._empty(lane)
            lane.epoch = None
            if not lane.in_flight:
                del self._lanes[lane.partition]
        self._note_load()
        return [record for record in self._under_way.values() if self._lanes.get(record.partition) in lanes]

    def offer(self, partition: Partition, epoch: int, record: R) -> bool:
        """Add a record; False, and nothing changes, if the epoch is not the partition's or the offset is repeated."""
        lane = self._lanes.get(partition)
        offset = record.offset
        if lane is None or lane.epoch != epoch or offset <= lane.last:
            return False
        lane.last = offset
        key = record.key
        if key is not None and key in lane.chains:
            if (waiting := lane.chains[key]) is None:
                waiting = lane.chains[key] = deque()
            waiting.append(record)
        else:
            if key is not None:
                lane.chains[key] = None
            heappush(lane.ready, (offset, record))
            if not lane.is_in_turn:
                self._queue(lane)
        lane.load += 1
        if lane.load > self._limits.partition_high:
            self._over.add(partition)
        if not lane.reason:
            self._load += 1
            self._note_load()
        return True

    def take(self) -> list[R]:
        """Give the records that may begin now; each is under way until it is finished."""
        taken: list[R] = []
        turns, most = self._turns, self._limits.in_flight_per_partition
        places = self._limits.in_flight - self._in_flight
        while turns and len(taken) < places:
            lane = turns.popleft()
            record = heappop(lane.ready)[1]
            lane.in_flight += 1
            self._under_way[id(record)] = record
            taken.append(record)
            if lane.ready and lane.in_flight < most:
                turns.append(lane)
            else:
                lane.is_in_turn = False
        self._in_flight += len(taken)
        return taken

    def finished(self, record: R) -> bool:
        """Remove a record, whatever became of it; False, and nothing changes, if it was not under way."""
        if self._under_way.pop(id(record), None) is None:
            return False
        lane, key = self._lanes[record.partition], record.key
        if key is not None:
            waiting = lane.chains.pop(key, None)
            if waiting:
                following = waiting.popleft()
                lane.chains[key] = waiting or None
                heappush(lane.ready, (following.offset, following))
        lane.in_flight -= 1
        lane.load -= 1
        if lane.load < self._limits.partition_low:
            self._over.discard(lane.partition)
        if not lane.reason:
            self._in_flight -= 1
            self._load -= 1
            if self._is_full:
                self._note_load()
        if lane.ready and not lane.is_in_turn:
            self._queue(lane)
        elif lane.epoch is None and not lane.in_flight:
            del self._lanes[lane.partition]
        return True

    def block(self, partition: Partition, reason: str) -> None:
        """Let no record of a partition begin until it is unblocked or assigned anew; ignored for one not held."""
        lane = self._lanes.get(partition)
        if lane is not None and lane.epoch is not None:
            if not lane.reason:
                self._leave(lane)
                self._load -= lane.load
                self._in_flight -= lane.in_flight
            lane.reason = reason or "no reason was given"
            self._note_load()

    def unblock(self, partition: Partition) -> None:
        """Let a partition go on; its records under way count against the limits again, so others may have to wait."""
        lane = self._lanes.get(partition)
        if lane is not None and lane.reason:
            lane.reason = ""
            self._load += lane.load
            self._in_flight += lane.in_flight
            self._queue(lane)
            self._note_load()

    @property
    def blocked(self) -> dict[Partition, str]:
        """The blocked partitions and why each is."""
        return {partition: lane.reason for partition, lane in self._lanes.items() if lane.reason}

    def load_of(self, partition: Partition) -> QueueDepth:
        """Count the records held of a partition; zero for one that is not held."""
        lane = self._lanes.get(partition)
        return (
            QueueDepth(0, 0, "")
            if lane is None
            else QueueDepth(lane.in_flight, lane.load - lane.in_flight, lane.reason)
        )

    @property
    def pausing(self) -> set[Partition]:
        """Partitions that must pause now: they are blocked, or too many records of them, or of all, are held.

        Every held partition is either here or in `resuming`, because a consumer forgets its pauses at each assignment.
        """
        return {p for p, lane in self._held() if self._is_full or p in self._over or lane.reason}

    @property
    def resuming(self) -> set[Partition]:
        """Held partitions that may be fetched now."""
        return {partition for partition, _ in self._held()} - self.pausing

    @property
    def in_flight(self) -> int:
        """How many records are under way, including those of blocked and revoked partitions."""
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        """How many held records have not begun, including those of blocked partitions."""
        return sum(lane.load - lane.in_flight for lane in self._lanes.values())

    def _held(self) -> Iterator[tuple[Partition, _PartitionQueue[R]]]:
        return ((partition, lane) for partition, lane in self._lanes.items() if lane.epoch is not None)

    def _queue(self, lane: _PartitionQueue[R]) -> None:
        if lane.ready and not lane.reason and lane.in_flight < self._limits.in_flight_per_partition:
            lane.is_in_turn = True
            self._turns.append(lane)

    def _leave(self, lane: _PartitionQueue[R]) -> None:
        if lane.is_in_turn:
            lane.is_in_turn = False
            self._turns.remove(lane)

    def _empty(self, lane: _PartitionQueue[R]) -> None:
        """Drop records that have not begun, and the block: the next assignment finds out for itself."""
        self._leave(lane)
        if lane.reason:
            lane.reason = ""
            self._load += lane.in_flight
            self._in_flight += lane.in_flight
        else:
            self._load -= lane.load - lane.in_flight
        lane.load = lane.in_flight
        lane.ready.clear()
        keys = (record.key for record in self._under_way.values() if record.partition == lane.partition)
        lane.chains = {key: None for key in keys if key is not None}
        self._over.discard(lane.partition)

    def _note_load(self) -> None:
        low, high = self._limits.total_low, self._limits.total_high
        self._is_full = self._load > high or (self._is_full and self._load >= low)
