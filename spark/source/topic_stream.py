"""The format `topic`: a Kafka topic's records as a stream of rows, read with the client and settings of the bridge."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from shared.errors import GiveUp, InvalidSetting
from shared.settings import load_settings
from spark.source.topic import Offsets, TopicOffsets, cut_offsets, find_offsets, read_range
from spark.tasks.options import OF_SPARK, Options
from spark.tasks.pickling import PicklableByName

COLUMNS = (
    "topic string, partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)

TOPIC_ID = "topic_id"

Position = dict[str, int | str]
"""What Spark stores of a stream, as JSON: an offset for each partition, and the id of the topic."""

LOOK_SECONDS = 1.0  # between two calls to the broker; an idle Spark asks for the latest offset 100 times a second


class TopicDataSource(DataSource):
    """Records as rows, only as a stream; to read the present records once, use `dormice spark prepare kafka:TOPIC`."""

    @classmethod
    def name(cls) -> str:
        """Give the word for `.format(…)`."""
        return "topic"

    def schema(self) -> str:
        """Give the columns."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 — Spark's own signature
        """Make the reader; raises InvalidSetting for a bad option."""
        return TopicStreamReader(self.options)


class TopicStreamReader(PicklableByName, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic's records after the checkpoint; the query ends with an error if the topic has lost some of them."""

    def __init__(self, given: Mapping[str, str]) -> None:
        options = Options(given, ("topic", "startingOffsets", "maxRecords", "kafkaServers", *OF_SPARK))
        self._topic = options.text("topic")
        if not self._topic:
            raise InvalidSetting("topic: is missing; name a Kafka topic")

        begin = options.text("startingOffsets").lower() or "earliest"
        if begin not in ("earliest", "latest"):
            raise InvalidSetting(f"startingOffsets: is {begin!r}; write earliest or latest")

        self._is_from_earliest = begin == "earliest"
        servers = options.text("kafkaServers")
        given = {"kafka_servers": servers} if servers else {}
        self._settings = load_settings(given, os.environ)
        self._records_max = options.count("maxRecords", 0)
        self._target: Offsets | None = None
        self._looked_at = -LOOK_SECONDS

    def initialOffset(self) -> Position:  # noqa: N802 — Spark's own name
        """Begin with the oldest record, or, if the options say so, with the next record to come."""
        found = self._look()
        offsets = found.begins if self._is_from_earliest else found.ends
        return to_position(offsets, found.topic_id)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 — Spark's own name
        """Bound a micro-batch by the option `maxRecords`."""
        return ReadMaxRows(self._records_max) if self._records_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's own name
        """Read only up to the topic's present end."""
        self._target = self._look().ends

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802 — Spark's own name
        """Give the end of the next micro-batch; raises GiveUp when records that it needs no longer exist."""
        found = self._look()
        reached = to_offsets(start)
        if start.get(TOPIC_ID, found.topic_id) != found.topic_id and found.topic_id:
            raise GiveUp(
                f"topic {self._topic}: was deleted and made again since the checkpoint was written; begin with a new "
                "checkpoint, which reads the new topic from its first record"
            )
        self._refuse_loss(reached, found.begins, found.ends)

        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        target = found.ends if self._target is None else self._target
        return to_position(advance(found.begins | reached, target, maximum), found.topic_id)

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Cut the records into tasks; each reads one offset range."""
        return list(map(InputPartition, cut_offsets(self._topic, to_offsets(start), to_offsets(end))))

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Give an offset range's records; raises RetryLater when the broker stops sending them."""
        for record in read_range(self._settings, partition.value):
            moment = datetime.fromtimestamp(record.timestamp / 1000, UTC)
            place = (record.topic, record.partition, record.offset)
            yield (*place, moment, record.key, record.value, list(record.headers))

    def _look(self) -> TopicOffsets:
        time.sleep(max(0.0, self._looked_at + LOOK_SECONDS - time.monotonic()))
        found = asyncio.run(find_offsets(self._settings, self._topic))
        self._looked_at = time.monotonic()
        return found

    def _refuse_loss(self, start: Offsets, begins: Offsets, ends: Offsets) -> None:
        for number, offset in start.items():
            if number not in ends or offset > ends[number]:
                raise GiveUp(
                    f"topic {self._topic}: partition {number} does not reach offset {offset}, where the checkpoint is; "
                    "the topic was made anew: begin with a new checkpoint"
                )

            if offset < begins[number]:
                raise GiveUp(
                    f"topic {self._topic}: records {offset} to {begins[number] - 1} of partition {number} were deleted "
                    "before they were read; raise the topic's retention, and begin with a new checkpoint to go on "
                    "without them"
                )


def to_position(offsets: Offsets, topic_id: str) -> Position:
    """Give what Spark stores for some offsets: the id of their topic stands beside them, if it has one."""
    return {**offsets, TOPIC_ID: topic_id} if topic_id else {**offsets}


def to_offsets(position: Position) -> Offsets:
    """Give the offsets in what Spark has stored."""
    return {number: offset for number, offset in position.items() if isinstance(offset, int)}


def advance(begins: Offsets, ends: Offsets, maximum: int | None) -> Offsets:
    """Advance from begins towards ends by `most` records in all, in equal shares; longer ones get what is left."""
    lags = {number: max(0, ends.get(number, begin) - begin) for number, begin in begins.items()}
    room = sum(lags.values()) if maximum is None else maximum
    offsets = dict(begins)
    for left, number in zip(range(len(lags), 0, -1), sorted(lags, key=lags.__getitem__), strict=True):
        share = min(lags[number], -(-room // left))
        offsets[number] += share
        room -= share
    return offsets
