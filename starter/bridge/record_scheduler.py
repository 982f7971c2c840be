"""The record scheduler: which received records may begin now, and which partitions must pause."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from starter.bridge.offsets import NOTHING, Partition
from starter.bridge.pending_record import PendingRecord


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """How many records may be under way, and how many may be held, waiting or under way, before partitions pause."""

    in_flight_per_partition: int
    in_flight: int
    partition_high: int
    partition_low: int
    total_high: int
    total_low: int


class QueueDepth(NamedTuple):
    """The records of a partition under way and waiting, and why none may begin; `reason` is empty while they may."""

    in_flight: int
    waiting: int
    reason: str


@dataclass(slots=True, eq=False)
class _PartitionQueue:
    """The held records of one partition; `load` counts all of them, `in_flight` those under way."""

    partition: Partition
    epoch: int | None = None
    """None after the partition is revoked, while some of its records are still under way."""
    last: int = NOTHING
    reason: str = ""
    load: int = 0
    in_flight: int = 0
    is_in_turn: bool = False
    ready: list[tuple[int, PendingRecord]] = field(default_factory=list[tuple[int, PendingRecord]])
    """A heap by offset: the record received first begins first, also if it had to wait for its key."""
    chains: dict[bytes, deque[PendingRecord] | None] = field(default_factory=dict[bytes, deque[PendingRecord] | None])
    """For each key with a record that is ready or under way: the records waiting behind it."""


class RecordScheduler:
    """Gives out the records of each key in offset order; different keys run in parallel, partitions take turns.

    Records of a blocked partition that are under way do not count against the limits. Identity tells records apart.
    """

    def __init__(self, limits: InFlightLimits) -> None:
        self._limits = limits
        self._lanes: dict[Partition, _PartitionQueue] = {}
        self._turns: deque[_PartitionQueue] = deque()  # partitions with a record that may begin, each once
        self._under_way: dict[int, PendingRecord] = {}
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
        """Begin anew: only records of this epoch count, behind those under way, so that the order in each key holds."""
        for partition in partitions:
            lane = self._lanes.setdefault(partition, _PartitionQueue(partition))
            self._empty(lane)
            lane.epoch = epoch
            lane.last = NOTHING
        self._note_load()

    def revoke(self, partitions: Iterable[Partition]) -> list[PendingRecord]:
        """Drop records of partitions that have not begun; give those still under way, also of earlier assignments."""
        lanes = {self._lanes[partition] for partition in partitions if partition in self._lanes}
        for lane in lanes:
            self._empty(lane)
            lane.epoch = None
            if not lane.in_flight:
                del self._lanes[lane.partition]
        self._note_load()
        return [record for record in self._under_way.values() if self._lanes.get(record.partition) in lanes]

    def offer(self, record: PendingRecord) -> bool:
        """Add a record; False, and nothing changes, if its epoch is not the partition's or the offset is repeated."""
        lane = self._lanes.get(record.partition)
        offset = record.offset
        key = record.key
        if lane is None or lane.epoch != record.epoch or offset <= lane.last:
            return False

        lane.last = offset
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
            self._over.add(lane.partition)

        if not lane.reason:
            self._load += 1
            self._note_load()

        return True

    def take(self) -> list[PendingRecord]:
        """Give the records that may begin now; each is under way until it is finished."""
        taken: list[PendingRecord] = []
        turns = self._turns
        maximum = self._limits.in_flight_per_partition

        places = self._limits.in_flight - self._in_flight
        while turns and len(taken) < places:
            lane = turns.popleft()
            record = heappop(lane.ready)[1]
            lane.in_flight += 1
            self._under_way[id(record)] = record
            taken.append(record)
            if lane.ready and lane.in_flight < maximum:
                turns.append(lane)
            else:
                lane.is_in_turn = False

        self._in_flight += len(taken)
        return taken

    def finished(self, record: PendingRecord) -> bool:
        """Remove a record, whatever became of it; False, and nothing changes, if it was not under way."""
        if self._under_way.pop(id(record), None) is None:
            return False

        lane = self._lanes[record.partition]
        key = record.key
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
        """Let no record of a partition begin, for a reason, until it is unblocked or assigned anew, if it is held."""
        lane = self._lanes.get(partition)
        if lane is not None and lane.epoch is not None:
            if not lane.reason:
                self._leave(lane)
                self._load -= lane.load
                self._in_flight -= lane.in_flight
            lane.reason = reason
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
        lane = self._lanes.get(partition, _PartitionQueue(partition))
        return QueueDepth(lane.in_flight, lane.load - lane.in_flight, lane.reason)

    @property
    def pausing(self) -> set[Partition]:
        """Partitions that must pause now: they are blocked, or too many records of them, or of all, are held."""
        held = ((partition, lane) for partition, lane in self._lanes.items() if lane.epoch is not None)
        return {partition for partition, lane in held if self._is_full or partition in self._over or lane.reason}

    @property
    def in_flight(self) -> int:
        """How many records are under way, including those of blocked and revoked partitions."""
        return len(self._under_way)

    def _queue(self, lane: _PartitionQueue) -> None:
        if lane.ready and not lane.reason and lane.in_flight < self._limits.in_flight_per_partition:
            lane.is_in_turn = True
            self._turns.append(lane)

    def _leave(self, lane: _PartitionQueue) -> None:
        if lane.is_in_turn:
            lane.is_in_turn = False
            self._turns.remove(lane)

    def _empty(self, lane: _PartitionQueue) -> None:
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
        low = self._limits.total_low
        high = self._limits.total_high
        self._is_full = self._load > high or (self._is_full and self._load >= low)
