"""The batch side of the format `temporal`: `df.write.format("temporal").mode("append")` starts a message per row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from shared.errors import InvalidSetting
from spark.tasks.batches import check_schema
from spark.tasks.options import read_write_options
from spark.tasks.pickling import PicklableByName
from spark.tasks.receipts import StartCounts
from spark.tasks.starting import TaskSpec, check_connection, start_rows


@dataclass(frozen=True)
class WriteCommit(WriterCommitMessage):
    """What a task returns to the driver: its counts; its receipts are in their file already."""

    partition: int
    told: StartCounts


class TemporalWriter(PicklableByName, DataSourceArrowWriter):
    """Starts rows; made on the driver, which refuses bad options and schemas before any row is started."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Read options and schema and check the server; raises an error of one sentence for what is wrong."""
        self._order = TaskSpec.of(read_write_options(given), check_schema(schema))
        check_connection(self._order.options)

    def write(self, iterator: Iterator[Any]) -> WriteCommit:
        """Start the rows of one task, in the task's own process."""
        partition, attempt = current_task()
        name = f"{self._order.options.run}-{partition:05d}"
        return WriteCommit(partition, start_rows(self._order, iterator, name, attempt))


def refuse_overwrite(*, is_overwriting: bool) -> None:
    """Raise InvalidSetting for the mode `overwrite`: messages that were started can't be replaced."""
    if is_overwriting:
        raise InvalidSetting("mode: is overwrite, but messages that are alive stay; use append")


def current_task() -> tuple[int, int]:
    """Give the number of this task's partition and of its attempt, both from 0."""
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("not in a task of Spark")
    return context.partitionId(), context.attemptNumber()
