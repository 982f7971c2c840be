"""The format `topic`: a Kafka topic's records as a stream of rows, read with the client and settings of the bridge."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from shared.errors import GiveUp
from spark.source.topic import OffsetRange, Watermarks, cut_pieces, find_bounds, read_piece
from spark.tasks.options import read_topic_options
from spark.tasks.pickling import PicklableByName

TOPIC_FORMAT = "topic"
COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)

LOOK_SECONDS = 1.0
"""Least time between two calls to the broker; while idle, Spark asks for the latest offset 100 times a second."""

Offsets = dict[str, int]
"""By partition, the first offset that is not read yet. Spark stores them as JSON, so the keys are text."""


@dataclass
class OffsetRangePartition(InputPartition):
    """What one task reads."""

    piece: OffsetRange


class TopicDataSource(DataSource):
    """Records as rows, only as a stream; to read the present records once, use `dormice spark prepare kafka:TOPIC`."""

    @classmethod
    def name(cls) -> str:
        """Give the word for `.format(…)`."""
        return TOPIC_FORMAT

    def schema(self) -> str:
        """Give the columns."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 — Spark's own signature
        """Make the reader; raises InvalidSetting for a bad option."""
        return TopicStreamReader(self.options)


class TopicStreamReader(PicklableByName, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic's records after the checkpoint; the query ends with an error if the topic has lost some of them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Read the options; raises InvalidSetting in one sentence."""
        self._options = read_topic_options(given)
        self._target: Offsets | None = None
        self._looked_at = -LOOK_SECONDS

    def initialOffset(self) -> Offsets:  # noqa: N802 — Spark's own name
        """Begin with the oldest record, or, if the options say so, with the next record to come."""
        bounds = self._look()
        return {number: (b.begin if self._options.is_from_earliest else b.end) for number, b in bounds.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 — Spark's own name
        """Bound a micro-batch by the option `maxRecords`."""
        most = self._options.records_max
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's own name
        """Read only up to the topic's present end."""
        self._target = {number: bounds.end for number, bounds in self._look().items()}

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 — Spark's own name
        """Give the end of the next micro-batch; raises GiveUp when records that it needs no longer exist."""
        bounds = self._look()
        self._refuse_loss(start, bounds)
        begins = {number: start.get(number, b.begin) for number, b in bounds.items()}
        ends = {number: b.end for number, b in bounds.items()} if self._target is None else self._target
        return advance(begins, ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: Offsets, end: Offsets) -> list[OffsetRangePartition]:
        """Cut the records into tasks; each reads one offset range."""
        topic = self._options.topic
        return [
            OffsetRangePartition(offset_range)
            for number, to in end.items()
            for offset_range in cut_pieces(topic, int(number), start.get(number, 0), to)
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Give an offset range's records; raises RetryLater when the broker stops sending them."""
        if not isinstance(partition, OffsetRangePartition):
            raise TypeError(f"Spark gave a {type(partition).__name__} that is none of ours")
        for record in read_piece(self._options.settings, partition.piece):
            moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
            yield (
                *(record.topic, record.partition, record.offset, moment),
                *(record.key, record.value, list(record.headers)),
            )

    def _look(self) -> dict[str, Watermarks]:
        time.sleep(max(0.0, self._looked_at + LOOK_SECONDS - time.monotonic()))
        found = find_bounds(self._options.settings, self._options.topic)
        self._looked_at = time.monotonic()
        return {str(number): bounds for number, bounds in found.items()}

    def _refuse_loss(self, start: Offsets, bounds: Mapping[str, Watermarks]) -> None:
        topic = self._options.topic
        for number, offset in start.items():
            there = bounds.get(number)
            if there is None or offset > there.end:
                raise GiveUp(
                    f"topic {topic}: partition {number} does not reach offset {offset}, where the checkpoint is; "
                    "the topic was made anew: begin with a new checkpoint"
                )
            if offset < there.begin:
                raise GiveUp(
                    f"topic {topic}: records {offset} to {there.begin - 1} of partition {number} were deleted before "
                    "they were read; raise the topic's retention, and begin with a new checkpoint to go on without them"
                )


def advance(begins: Offsets, ends: Offsets, most: int | None) -> Offsets:
    """Advance from begins towards ends by `most` records in all, in equal shares; short partitions go first.

    What a short partition leaves of its share goes to the longer ones.
    """
    lags = {number: max(0, ends.get(number, begin) - begin) for number, begin in begins.items()}
    room = sum(lags.values()) if most is None else most
    offsets = dict(begins)
    for left, number in zip(range(len(lags), 0, -1), sorted(lags, key=lags.__getitem__), strict=True):
        share = min(lags[number], -(-room // left))
        offsets[number] += share
        room -= share
    return offsets
