"""The lag of a consumer group as the broker knows it, whether or not a bridge runs."""

import asyncio
import contextlib
import importlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaError,
    for_code,
)

from shared.errors import InvalidSetting
from shared.kafka.safe_producer import (
    PATIENCE_SECONDS,
    list_topics,
    open_admin,
    open_reader,
    translate_errors,
)
from shared.kafka.topic_ids import read_topic_ids
from starter.bridge.offsets import CommittedOffset, Partition, read_note

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
    flaw: str
    """Why what is committed does not fit the partition, and what to do; empty when it does."""


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
        ids = await read_topic_ids(admin, topics)
        state, holders, stored = await _describe_patiently(admin, group)
    if state == NO_SUCH_GROUP and not stored:
        raise InvalidSetting(f"--group: there is no consumer group {group!r}; start its bridge, or correct the name")

    partitions = [TopicPartition(topic, number) for topic in dict.fromkeys(topics) for number in range(known[topic])]
    only: dict[str, Any] = {"isolation_level": "read_committed", "auto_offset_reset": "earliest"}
    async with open_reader(options, **only) as reader, translate_errors(""), asyncio.timeout(PATIENCE_SECONDS):
        positions = await _find_positions(options, reader, partitions, stored, ids)
        found = await _measure(reader, positions, holders)
    return GroupLag(group=group, state=state, partitions=found)


async def read_committed(consumer: Any, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
    """Read what the group of a consumer has committed in some partitions; gives nothing while the broker is away.

    Raises the errors of aiokafka that waiting does not mend.
    """
    try:
        ids = await read_topic_ids(consumer, {partition.topic for partition in partitions})
        # aiokafka's own method leaves out the note beside the offset
        stored = await consumer._coordinator.fetch_committed_offsets(partitions)  # noqa: SLF001
    except KafkaError as exc:
        if exc.retriable:
            return {}
        raise
    return {partition: _to_committed(partition, stored, ids) for partition in partitions}


async def _find_positions(
    options: Mapping[str, Any],
    reader: Any,
    partitions: Sequence[TopicPartition],
    stored: Mapping[TopicPartition, Any],
    ids: Mapping[str, str],
) -> dict[TopicPartition, CommittedOffset]:
    ends = await reader.end_offsets(partitions)
    found = {each: _to_committed(each, stored, ids)._replace(end=ends[each]) for each in partitions}

    beyond = [partition for partition, position in found.items() if position.is_beyond_end]
    if beyond:
        # others may commit the end of the log, which is behind records of open transactions
        async with open_reader(options) as whole:
            logs = await whole.end_offsets(beyond)
        in_log = {p: found[p] for p in beyond if not found[p]._replace(end=logs[p]).is_beyond_end}
        found |= {partition: position._replace(offset=ends[partition]) for partition, position in in_log.items()}
    return found


def _to_committed(
    partition: TopicPartition, stored: Mapping[TopicPartition, Any], ids: Mapping[str, str]
) -> CommittedOffset:
    committed = stored.get(partition)
    topic_id = ids.get(partition.topic, "")
    if committed is None or committed.offset < 0:
        return CommittedOffset(None, "", topic_id)
    return CommittedOffset(committed.offset, read_note(committed.metadata or ""), topic_id)


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
    reader: Any, positions: Mapping[TopicPartition, CommittedOffset], holders: Mapping[TopicPartition, str]
) -> tuple[PartitionLag, ...]:
    firsts = await reader.beginning_offsets(list(positions))
    ends = {partition: position.end or 0 for partition, position in positions.items()}
    starts = {partition: _find_start(position, firsts[partition]) for partition, position in positions.items()}
    behind = {partition: start for partition, start in starts.items() if start < ends[partition]}
    timestamps = await _read_timestamps(reader, behind, ends)
    now = time.time()

    return tuple(
        PartitionLag(
            topic=partition.topic,
            number=partition.partition,
            committed=position.offset,
            end=ends[partition],
            lag=max(0, ends[partition] - starts[partition]),
            time_lag_seconds=max(0.0, now - timestamps.get(partition, math.inf) / 1000),
            member=holders.get(partition, ""),
            flaw=position.describe_flaw(Partition(*partition)),
        )
        for partition, position in positions.items()
    )


def _find_start(position: CommittedOffset, first: int) -> int:
    """Give the offset from which the lag counts: records that retention has deleted are no lag."""
    if position.offset is None or position.is_of_older_topic:
        return first
    return max(position.offset, first)


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
