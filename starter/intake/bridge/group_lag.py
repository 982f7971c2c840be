"""The lag of a consumer group as the broker knows it, whether or not a bridge runs."""

import asyncio
import contextlib
import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError, GroupLoadInProgressError, for_code

from shared.errors import InvalidSetting
from shared.kafka.safe_producer import PATIENCE_SECONDS, list_topics, open_admin, open_reader, translate_errors

NO_SUCH_GROUP = "Dead"  # Kafka's name for the state of an unknown group
AGAIN_SECONDS = 0.2
POLL_MILLISECONDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far a group is behind in one partition."""

    topic: str
    number: int
    committed: int | None
    """None where the group has never committed; a bridge begins at the first record then."""
    end: int
    """The offset after the last readable record."""
    lag: int
    time_lag_seconds: float
    """Age of the record at the committed offset, by its own timestamp; 0 when none waits."""
    member: str
    """The member that holds it, by the broker's name for it; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """How far a group is behind in some topics."""

    group: str
    state: str
    """Kafka's own word: Stable, PreparingRebalance, CompletingRebalance, Empty."""
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """The sum over all partitions."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def time_lag_seconds(self) -> float:
        """The time lag of the partition that is furthest behind."""
        return max((partition.time_lag_seconds for partition in self.partitions), default=0.0)


async def read_group_lag(options: Mapping[str, Any], group: str, topics: Sequence[str]) -> GroupLag:
    """Ask the broker for the lag; raises InvalidSetting for a topic or a group that is not there, and BrokerError."""
    async with open_admin(options) as admin:
        known = await list_topics(admin, *topics)
        state, holders, stored = await _describe_patiently(admin, group)
    if state == NO_SUCH_GROUP and not stored:
        raise InvalidSetting(f"--group: there is no consumer group {group!r}; start its bridge, or correct the name")
    partitions = [TopicPartition(topic, number) for topic in dict.fromkeys(topics) for number in range(known[topic])]
    committed = {partition: value.offset for partition, value in stored.items() if value.offset >= 0}
    only: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with open_reader(options, **only) as reader, translate_errors(""), asyncio.timeout(PATIENCE_SECONDS):
        found = await _measure(reader, partitions, committed, holders)
    return GroupLag(group=group, state=state, partitions=found)


async def _describe_patiently(admin: Any, group: str) -> tuple[str, dict[TopicPartition, str], Mapping[Any, Any]]:
    """Give a group's state, each partition's holder and the committed offsets; waits for a broker that just started."""
    while True:
        with contextlib.suppress(GroupCoordinatorNotAvailableError, GroupLoadInProgressError):
            return *await _describe(admin, group), await admin.list_consumer_group_offsets(group)
        await asyncio.sleep(AGAIN_SECONDS)


async def _describe(admin: Any, group: str) -> tuple[str, dict[TopicPartition, str]]:
    protocol: Any = importlib.import_module("aiokafka.coordinator.protocol").ConsumerProtocol
    (answer,) = await admin.describe_consumer_groups([group])
    code, _, state, _, _, members, *_ = answer.groups[0]
    if code:
        raise for_code(code)(group)
    return state, {
        partition: f"{member_id} {host}"
        for member_id, _, host, _, assignment in members
        if assignment  # empty until a rebalance is over
        for partition in protocol.ASSIGNMENT.decode(assignment).partitions()
    }


async def _measure(
    reader: Any,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    holders: Mapping[TopicPartition, str],
) -> tuple[PartitionLag, ...]:
    ends, firsts = await reader.end_offsets(partitions), await reader.beginning_offsets(partitions)
    # records that retention has deleted are no lag
    starts = {partition: max(committed.get(partition, 0), firsts[partition]) for partition in partitions}
    behind = {partition: starts[partition] for partition in partitions if starts[partition] < ends[partition]}
    timestamps = await _read_timestamps(reader, behind, ends)
    now = time.time()
    return tuple(
        PartitionLag(
            topic=partition.topic,
            number=partition.partition,
            committed=committed.get(partition),
            end=ends[partition],
            lag=max(0, ends[partition] - starts[partition]),
            time_lag_seconds=max(0.0, now - timestamps[partition] / 1000) if partition in timestamps else 0.0,
            member=holders.get(partition, ""),
        )
        for partition in partitions
    )


async def _read_timestamps(
    reader: Any, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Give the timestamp of each partition's first record from its start on; none where there are only markers."""
    found: dict[TopicPartition, int] = {}
    if starts:
        reader.assign(list(starts))
    for partition, start in starts.items():
        reader.seek(partition, start)
    for partition in starts:
        while partition not in found and await reader.position(partition) < ends[partition]:
            polled = await reader.getmany(partition, timeout_ms=POLL_MILLISECONDS, max_records=1)
            for raw in polled.get(partition, ()):
                found[partition] = raw.timestamp
    return found
