"""Parquet: opens files so that Spark gives every value in the type that its file names, also in types unknown to it."""

import contextlib
import importlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from shared.errors import GiveUp
from starter.files.parquet import find_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ArrowTypes = Mapping[str, Any]
"""The Arrow types of columns, by their names, where Spark gives the values in another type."""

_FOLDERS = "spark.sql.sources.partitionColumnTypeInference.enabled"
_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the length of the footer, and the magic


def open_parquet(spark: "SparkSession", place: str, options: Mapping[str, str]) -> tuple["DataFrame", ArrowTypes]:
    """Give a table of Parquet files, with the parts of folder names like tenant=0042 as text, and its Arrow types.

    Spark refuses UUIDs, times and nanoseconds, and takes durations for numbers: it gets the type in which they are
    stored, and each task gives them back their own. Raises GiveUp for a file whose types differ from the first one's.
    """
    reader = spark.read.options(**options)
    with _folders_as_text(spark):
        files = sorted(reader.text(place).inputFiles())
        types = _find_types(spark, files[0]) if files else dict[str, Any]()
        if not types:
            return reader.parquet(place), types

        for file in files[1:]:
            if _find_types(spark, file) != types:
                raise GiveUp(f"{file}: has columns of other types than {files[0]}; prepare it by itself")
        return reader.schema(_to_spark(_read_schema(spark, files[0]))).parquet(place), types


def restore_types(cells: Any, types: ArrowTypes) -> Any:
    """Give a column of structs with the columns in their own types."""
    if not types:
        return cells

    arrow: Any = importlib.import_module("pyarrow")
    names = [field.name for field in cells.type]
    columns = [
        column.cast(types[name]) if name in types else column
        for name, column in zip(names, cells.flatten(), strict=True)
    ]
    return arrow.StructArray.from_arrays(columns, names)


@contextlib.contextmanager
def _folders_as_text(spark: "SparkSession") -> Generator[None]:
    """Keep Spark from reading the parts of folder names as numbers and moments: 0042 would become 42."""
    before = spark.conf.get(_FOLDERS)
    spark.conf.set(_FOLDERS, "false")
    try:
        yield
    finally:
        spark.conf.set(_FOLDERS, before or "true")


def _find_types(spark: "SparkSession", file: str) -> ArrowTypes:
    schema = _read_schema(spark, file)
    return {} if schema is None else {field.name: field.type for field in schema if _is_foreign(field.type)}


def _read_schema(spark: "SparkSession", file: str) -> Any:
    """Give the schema of a file in Arrow; None where only Spark can say what is wrong with it."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        footer = arrow.BufferReader(_MAGIC + _read_footer(spark, file))
        return find_schema(parquet.ParquetFile(footer))
    except (OSError, arrow.ArrowException):
        return None


def _read_footer(spark: "SparkSession", file: str) -> bytes:
    """Read the end of a file through Spark, which knows the file systems of the cluster."""
    jvm: Any = spark._jvm  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] — the only way to Hadoop's files
    path = jvm.org.apache.hadoop.fs.Path(file)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001  # pyright: ignore — as above
    size = system.getFileStatus(path).getLen()
    read = jvm.org.apache.commons.io.IOUtils.toByteArray

    stream = system.open(path)
    try:
        stream.seek(max(size - _TAIL_BYTES, 0))
        tail = bytes(read(stream))
        length = int.from_bytes(tail[:4], "little")
        stream.seek(max(size - _TAIL_BYTES - length, 0))
        return bytes(read(stream))
    finally:
        stream.close()


def _is_foreign(kind: Any) -> bool:
    """Whether Spark refuses a type, or gives its values in one that means something else."""
    types: Any = importlib.import_module("pyarrow").types
    if types.is_nested(kind):
        return any(_is_foreign(kind.field(place).type) for place in range(kind.num_fields))
    is_fine = types.is_timestamp(kind) and kind.unit == "ns"
    return is_fine or types.is_time(kind) or types.is_duration(kind) or types.is_uint64(kind) or _is_uuid(kind)


def _is_uuid(kind: Any) -> bool:
    arrow: Any = importlib.import_module("pyarrow")
    return isinstance(kind, arrow.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def _to_spark(schema: Any) -> Any:
    """Give the columns of a file as Spark can read them."""
    arrow: Any = importlib.import_module("pyarrow")
    from_arrow: Any = importlib.import_module("pyspark.sql.pandas.types").from_arrow_schema
    return from_arrow(arrow.schema([field.with_type(_find_stored(field.type)) for field in schema]))


def _find_stored(kind: Any) -> Any:
    """Give the type in which Spark can read the values of another one."""
    arrow: Any = importlib.import_module("pyarrow")
    types = arrow.types
    if isinstance(kind, arrow.BaseExtensionType):
        return _find_stored(kind.storage_type)
    if types.is_struct(kind):
        return arrow.struct([field.with_type(_find_stored(field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(_find_stored(kind.key_type), _find_stored(kind.item_type))
    if types.is_nested(kind):
        return arrow.list_(_find_stored(kind.value_type))
    if types.is_dictionary(kind):
        return _find_stored(kind.value_type)
    if types.is_fixed_size_binary(kind):
        return arrow.binary()
    if types.is_time32(kind):
        return arrow.int32()
    if types.is_time64(kind) or types.is_duration(kind) or (types.is_timestamp(kind) and kind.unit == "ns"):
        return arrow.int64()

    wider = {"uint8": arrow.int16(), "uint16": arrow.int32(), "uint32": arrow.int64(), "uint64": arrow.decimal128(20)}
    return wider.get(str(kind), kind)
