"""The format `temporal`: the data source that gives Spark its readers and writers of messages."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from spark.format.reader import COLUMNS, TemporalReader
from spark.format.stream_writer import TemporalStreamWriter
from spark.format.writer import TemporalWriter, refuse_overwrite
from spark.source.topic_stream import TopicDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "temporal"
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"
"""Off by default in Spark, which would then read all messages before it checks a condition."""


class TemporalDataSource(DataSource):
    """Messages as rows: appended, streamed, and read out of the server's index."""

    @classmethod
    def name(cls) -> str:
        """Give the word for `.format(…)`."""
        return FORMAT

    def schema(self) -> str:
        """Give the columns of a read."""
        return COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader; raises InvalidSetting for a bad option."""
        return TemporalReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 — Spark's own signature
        """Make the writer that appends; raises an error of one sentence when every row would fail."""
        refuse_overwrite(is_overwriting=overwrite)
        return TemporalWriter(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 — Spark's own signature
        """Make the writer of a stream's batches; raises an error of one sentence when every row would fail."""
        refuse_overwrite(is_overwriting=overwrite)
        return TemporalStreamWriter(self.options, schema)


def register_temporal(session: "SparkSession") -> None:
    """Register `format("temporal")` and `format("topic")` in a session; may be repeated."""
    session.dataSource.register(TemporalDataSource)
    session.dataSource.register(TopicDataSource)
    session.conf.set(PUSH_DOWN, "true")
