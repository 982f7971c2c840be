"""The status of one bridge: where each of its partitions stands and what it has done so far, as of one moment."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from starter.bridge.bridge import Bridge
from starter.bridge.delivery_loop import DEAD
from starter.bridge.offsets import PartitionOffsets
from starter.bridge.record_scheduler import QueueDepth
from starter.starting.receipts import StartOutcome

OUTCOMES = (*(outcome.value for outcome in StartOutcome), DEAD)
"""What can become of records. Failed ones are tried again, rejected ones become dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """One moment on both clocks, in seconds: the monotonic one and the one since 1970."""

    monotonic: float
    epoch: float

    @classmethod
    def now(cls) -> "ClockReading":
        """Read both clocks."""
        return cls(monotonic=time.monotonic(), epoch=time.time())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """Where a partition stands; None means that the bridge does not know it (yet)."""

    topic: str
    number: int
    received: int | None
    """The next offset to receive."""
    committed: int | None
    end: int | None
    """The offset after the last readable record, as the broker last reported."""
    lag: int | None
    """Records and transaction markers between `committed` and `end`."""
    time_lag_seconds: float | None
    """Age of the first unacknowledged record, by its own timestamp; 0 without lag."""
    oldest_unacknowledged_seconds: float
    """How long ago that record was received; 0 without one."""
    in_flight: int
    waiting: int
    is_paused: bool
    blocked: str
    """Why none of its records may begin; empty while all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeStatus:
    """One bridge as a whole; counts are since its start."""

    group: str
    member: str | None
    topics: tuple[str, ...]
    partitions: tuple[PartitionStatus, ...]
    received: int
    outcomes: dict[str, int]
    throttled: int
    """How often the Temporal server refused a call because it was overloaded."""
    retried: int
    """How often a call to the Temporal server was repeated for another reason."""
    rebalances: int
    commit_failures: int

    def dump(self) -> dict[str, Any]:
        """Give it as a JSON document."""
        return asdict(self)

    @classmethod
    def load(cls, raw: bytes) -> "BridgeStatus":
        """Read what another process dumped as JSON; raises ValueError for anything else."""
        return TypeAdapter(cls).validate_json(raw)


def read_status(bridge: Bridge, moment: ClockReading | None = None) -> BridgeStatus:
    """Read a bridge's status; makes no call, so it is cheap and works while broker and server are away."""
    moment = moment or ClockReading.now()
    paused, found = bridge.paused, bridge.assignment.find
    return BridgeStatus(
        group=bridge.options.group,
        member=bridge.options.member,
        topics=bridge.options.topics,
        partitions=tuple(
            to_partition_status(
                offsets,
                bridge.intake.load_of(partition),
                end=bridge.find_end(partition),
                is_paused=partition in paused,
                moment=moment,
            )
            for partition in sorted(bridge.assignment.partitions)
            if (offsets := found(partition)) is not None
        ),
        received=bridge.received,
        outcomes={name: bridge.desk.outcomes[name] for name in OUTCOMES},
        throttled=bridge.starter.caller.throttled,
        retried=bridge.starter.caller.retried,
        rebalances=bridge.rebalances,
        commit_failures=bridge.commit_failures,
    )


def to_partition_status(
    offsets: PartitionOffsets, load: QueueDepth, *, end: int | None, is_paused: bool, moment: ClockReading
) -> PartitionStatus:
    """Put together what is known about a partition."""
    committed, partition = offsets.last_committed, offsets.partition
    lag = None if committed is None or end is None else max(0, end - committed)
    oldest = offsets.oldest
    return PartitionStatus(
        topic=partition.topic,
        number=partition.number,
        received=offsets.reached,
        committed=committed,
        end=end,
        lag=lag,
        time_lag_seconds=_to_time_lag(offsets, lag, moment),
        oldest_unacknowledged_seconds=0.0 if oldest is None else max(0.0, moment.monotonic - oldest.received_at),
        in_flight=load.in_flight,
        waiting=load.waiting,
        is_paused=is_paused,
        blocked=load.reason,
    )


def _to_time_lag(offsets: PartitionOffsets, lag: int | None, moment: ClockReading) -> float | None:
    if offsets.oldest is not None:
        timestamp = offsets.oldest.timestamp
        # a producer's clock may be ahead of ours
        return max(0.0, moment.epoch - timestamp / 1000) if timestamp >= 0 else None
    return 0.0 if lag == 0 else None
