"""The format `temporal`: the data source that gives Spark its readers and writers of messages."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.types import StructType

from activities.registry import declared_packs, envelope_rules, load_registry
from shared.errors import InvalidSetting
from spark.format.reader import COLUMNS, TemporalReader
from spark.source.topic_stream import TopicDataSource
from spark.tasks.options import read_write_options
from spark.tasks.pickling import PicklableByName
from spark.tasks.starting import TaskSpec, check_schema, connect_checked, run_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "temporal"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"  # without it, all messages would be read for any condition
QUERY_ID = "sql.streaming.queryId"  # Spark keeps this id in the checkpoint, so it is the same after every restart
BATCH_ID = "streaming.sql.batchId"


class TemporalDataSource(datasource.DataSource):
    """Messages as rows: appended, streamed, and read from index and packs; the driver checks all options first."""

    @classmethod
    def name(cls) -> str:
        """Give the word for `.format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """Give the columns of a read."""
        return COLUMNS

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        """Make the reader; raises InvalidSetting for a bad option."""
        return TemporalReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> "TemporalWriter":  # noqa: FBT001 — Spark's own signature
        """Check the server too, and make the writer that appends."""
        spec = self._make_spec(schema, is_overwriting=overwrite)
        asyncio.run(connect_checked(spec.options.connection, spec.options.settings))
        return TemporalWriter(spec)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "TemporalStreamWriter":  # noqa: FBT001, N802 — Spark's own signature
        """Make the writer of a stream's batches; the tasks wait until the server answers."""
        # does not connect, because Spark makes one for every commit too
        return TemporalStreamWriter(self._make_spec(schema, is_overwriting=overwrite))

    def _make_spec(self, schema: StructType, *, is_overwriting: bool) -> TaskSpec:
        if is_overwriting:
            raise InvalidSetting("mode: is overwrite, but messages that are alive stay; use append")
        options = read_write_options(self.options)
        names = check_schema(schema)
        registry = load_registry(options.settings)
        rules = envelope_rules(options.settings, registry)
        return TaskSpec(options=options, names=names, rules=rules, packs=declared_packs(registry))


@dataclass
class TemporalWriter(PicklableByName, datasource.DataSourceArrowWriter):
    """Starts the rows of a save."""

    spec: TaskSpec

    def write(self, iterator: Iterator[Any]) -> datasource.WriterCommitMessage:
        """Start the rows of one task, in the task's own process."""
        run_task(self.spec, iterator, self.spec.options.run)
        return datasource.WriterCommitMessage()


@dataclass
class TemporalStreamWriter(PicklableByName, datasource.DataSourceStreamArrowWriter):
    """Starts the rows of each micro-batch; a repeated batch uses the same start session and the same receipt files."""

    spec: TaskSpec

    def write(self, iterator: Iterator[Any]) -> datasource.WriterCommitMessage:
        """Start the rows of one task of a micro-batch, in the task's own process."""
        query = _read_property(QUERY_ID)
        batch = int(_read_property(BATCH_ID))
        options = replace(self.spec.options, session=f"{query}|{batch}")
        run_task(replace(self.spec, options=options), iterator, f"{query}-{batch:08d}")
        return datasource.WriterCommitMessage()


def _read_property(name: str) -> str:
    task: Any = TaskContext.get()
    if not (value := task.getLocalProperty(name)):
        raise RuntimeError(f"Spark has not set {name}, by which a repeated batch is known")
    return value


def register_temporal(session: "SparkSession") -> None:
    """Register `format("temporal")` and `format("topic")` in a session; may be repeated."""
    session.dataSource.register(TemporalDataSource)
    session.dataSource.register(TopicDataSource)
    session.conf.set(PUSH_DOWN, "true")
