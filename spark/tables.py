"""Tables: columns as Spark writes them ("name type, …"), the same in Arrow, and Parquet files that hold them."""

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECEIPTS_DDL = (
    "workflow_id string, kind string, id string, run_id string, outcome string, reason string, attempts long, "
    "started_at timestamp"
)
"""Columns of the receipts, which the tasks of a start write and others read."""

BATCH_ROWS = 5000


def read_table(spark: "SparkSession", folder: Path, ddl: str) -> "DataFrame":
    """Give the Parquet files of a folder in the columns of `ddl`; no rows where there are no files."""
    if any(folder.rglob("*.parquet")):
        # with its schema, or Spark would run a job to find it
        return spark.read.schema(ddl).parquet(to_uri(folder)).select(*columns_of(ddl))
    return spark.range(0).selectExpr(*(f"cast(null as {kind}) {name}" for name, kind in columns_of(ddl).items()))


def count_values(folder: Path, name: str) -> Counter[str]:
    """Count the values of a column of text in the Parquet files of a folder, which this process reads itself."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    counts = Counter[str]()
    for path in folder.rglob("[!_.]*.parquet"):
        with parquet.ParquetFile(path, read_dictionary=[name]) as file:
            for batch in file.iter_batches(columns=[name]):
                for item in batch[name].value_counts().to_pylist():
                    counts[item["values"]] += item["counts"]
    return counts


def count_rows(folder: Path) -> int:
    """Count the rows of the Parquet files of a folder by what the files say of themselves."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    return sum(parquet.read_metadata(path).num_rows for path in folder.rglob("[!_.]*.parquet"))


def columns_of(ddl: str) -> dict[str, str]:
    """Give the type of each column, by its name."""
    return dict(column.split() for column in ddl.split(", "))


def to_uri(path: Path) -> str:
    """Give a path of this machine as a URI, because Spark may take plain paths for those of another file system."""
    return f"file://{path.resolve()}"


def to_schema(ddl: str) -> Any:
    """Give the columns as a schema of Arrow; moments are in UTC."""
    arrow: Any = importlib.import_module("pyarrow")
    types = {
        "long": arrow.int64(),
        "string": arrow.string(),
        "timestamp": arrow.timestamp("us", "UTC"),
        "double": arrow.float64(),
        "int": arrow.int32(),
    }
    return arrow.schema([(name, types[kind]) for name, kind in columns_of(ddl).items()])


def to_batch(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    """Make one batch of Arrow of some rows."""
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return to_batch_of(columns, schema)


def to_batch_of(columns: Iterable[Sequence[Any]], schema: Any) -> Any:
    """Make one batch of Arrow of columns."""
    arrow: Any = importlib.import_module("pyarrow")
    arrays = [arrow.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return arrow.RecordBatch.from_arrays(arrays, schema=schema)


def to_batches(rows: Iterable[Sequence[Any]], ddl: str) -> Iterator[Any]:
    """Make batches of Arrow of at most BATCH_ROWS rows."""
    schema = to_schema(ddl)
    rest = iter(rows)
    while some := list(islice(rest, BATCH_ROWS)):
        yield to_batch(some, schema)


def rows_of(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Give the rows of batches of Arrow."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
