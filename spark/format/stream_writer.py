"""The streaming side of the format `temporal`: `writeStream.format("temporal")` starts a message for each row, once."""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from spark.format.writer import WriteCommit, current_task
from spark.tasks.batches import check_schema
from spark.tasks.options import read_write_options
from spark.tasks.pickling import PicklableByName
from spark.tasks.starting import TaskSpec, start_rows

QUERY_ID = "sql.streaming.queryId"
"""Spark keeps this id in the checkpoint, so it is the same after every restart."""

BATCH_ID = "streaming.sql.batchId"


class TemporalStreamWriter(PicklableByName, DataSourceStreamArrowWriter):
    """Starts the rows of each micro-batch; a repeated batch uses the same start session and the same receipt files.

    Spark makes a writer for every commit too, so this one does not connect: the tasks wait until the server answers.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Read options and schema; raises an error of one sentence for a bad one."""
        self._order = TaskSpec.of(read_write_options(given), check_schema(schema))

    def write(self, iterator: Iterator[Any]) -> WriteCommit:
        """Start the rows of one task of a micro-batch, in the task's own process."""
        partition, attempt = current_task()
        query, batch = _local_property(QUERY_ID), int(_local_property(BATCH_ID))
        order = self._order.in_session(f"{query}|{batch}")
        name = f"{query}-{batch:08d}-{partition:05d}"
        return WriteCommit(partition, start_rows(order, iterator, name, attempt))


def _local_property(name: str) -> str:
    context = TaskContext.get()
    value = context and context.getLocalProperty(name)
    if not value:
        raise RuntimeError(f"Spark has not set {name}, by which a repeated batch is known")
    return value
