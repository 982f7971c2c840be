"""Sources: opens files, tables and topics as a frame of raw rows, with the reader of those rows for the tasks."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from shared.errors import GiveUp, InvalidSetting
from shared.settings import Settings, find_secret
from spark.source.mapping import RowMapping
from spark.source.packages import find_driver
from spark.source.raw_rows import CellReader, LineReader, RecordReader, RowReader, Starts
from spark.source.topic import find_pieces
from starter.files.rows import SUFFIXES, Line, read_header

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Form = Literal["csv", "jsonl", "parquet", "jdbc", "kafka"]
FORMS: tuple[Form, ...] = ("csv", "jsonl", "parquet", "jdbc", "kafka")
KAFKA_PREFIX = "kafka:"
JDBC_PREFIX = "jdbc:"

FETCHED_ROWS = 10_000
"""Rows fetched from a database at a time; without it, some drivers load the whole result into memory."""

FILE = "_metadata.file_path"
BLOCK = "_metadata.file_block_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where rows come from and how they are read.

    `place` is a path or pattern that Spark can read, a JDBC URL, or "kafka:" and a topic. `table` is the name of a
    database's table, or a query; `since` and `until` bound the records of a topic by their timestamps. `settings` hold
    the login for a database or a topic. `reader_options` go to Spark's own reader.
    """

    place: str
    form: Form
    mapping: RowMapping = field(default_factory=RowMapping)
    spans_lines: bool = False
    table: str = ""
    since: datetime | None = None
    until: datetime | None = None
    settings: Settings = field(default_factory=Settings)
    reader_options: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """The name for files and messages, without a JDBC URL's parameters, which may hold a password."""
        return self.place.partition("?")[0] if self.form == "jdbc" else self.place


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source that can be read: the frame of its raw rows, and their reader."""

    frame: "DataFrame"
    reader: RowReader


def guess_form(place: str) -> Form:
    """Find a source's form by its name; raises GiveUp when the name shows no known form."""
    if place.startswith(JDBC_PREFIX):
        return "jdbc"
    if place.startswith(KAFKA_PREFIX):
        return "kafka"
    name = PurePosixPath(place.rstrip("/")).name
    for suffix, form in {**SUFFIXES, ".json": "jsonl"}.items():
        if name.removesuffix(".gz").endswith(suffix):
            return form  # pyright: ignore[reportReturnType] — the readers' forms are among ours
    raise GiveUp(f"{place}: its name tells no format; add --format with one of {', '.join(FORMS)}")


def open_source(spark: "SparkSession", source: Source) -> OpenSource:
    """Check and open a source before its rows are read; raises GiveUp when it can't give any message.

    Rows are numbered across all files in the order of their paths: text files by line, Parquet by row.
    """
    if source.form == "kafka":
        return _open_topic(spark, source)
    source.mapping.check()
    if source.spans_lines and source.form != "csv":
        raise InvalidSetting("--multi-line: is for CSV, whose quoted cells may span lines; leave it out")
    if source.form == "jdbc":
        return _open_database(spark, source)
    if source.form == "parquet":
        return _open_parquet(spark, source)
    return _open_lines(spark, source)


def _open_lines(spark: "SparkSession", source: Source) -> OpenSource:
    # the readers handle line ends other than \n, as in any file
    text = spark.read.options(lineSep="\n", **source.reader_options).text(to_place(source.place))
    frame = text.selectExpr(f"{FILE} file", f"{BLOCK} block", "cast(value as binary) value")
    starts, total = _find_starts(frame)
    if not total:
        raise GiveUp(f"{source.place}: is empty; there is nothing to start")
    if source.form == "jsonl":
        return OpenSource(frame, LineReader(starts, source.mapping))
    header = _read_first_line(frame, min(starts))
    names = read_header(iter((Line.of(1, header, 0),)), source.place)
    source.mapping.reader(names, source.place, is_text=True)  # only a check: each task makes its own reader
    reader = LineReader(starts, source.mapping, header, tuple(names), source.place, source.spans_lines)
    return OpenSource(frame, reader)


def _find_starts(frame: "DataFrame") -> tuple[Starts, int]:
    """Count the rows before each block, so that tasks can number rows in any order, and the rows in total."""
    counted = [(row["file"], row["block"], row["rows"]) for row in _count_blocks(frame).collect()]
    starts: dict[tuple[str, int], int] = {}
    total = 0
    for file, block, rows in sorted(counted):
        starts[file, block] = total
        total += rows
    return starts, total


def _count_blocks(frame: "DataFrame") -> "DataFrame":
    return frame.groupBy("file", "block").count().withColumnRenamed("count", "rows")


def _read_first_line(frame: "DataFrame", first: tuple[str, int]) -> bytes:
    file, block = first
    (found,) = frame.where((frame["file"] == file) & (frame["block"] == block)).take(1)
    return bytes(found["value"]).rstrip(b"\r")


def _open_parquet(spark: "SparkSession", source: Source) -> OpenSource:
    table = spark.read.options(**source.reader_options).parquet(to_place(source.place))
    _check_columns(table, source)
    frame = table.selectExpr(f"{FILE} file", "_metadata.row_index row", "struct(*) cells")
    starts, _ = _find_starts(table.selectExpr(f"{FILE} file", "0L block"))
    return OpenSource(frame, CellReader(starts, source.mapping, tuple(table.columns), source.name))


def _open_database(spark: "SparkSession", source: Source) -> OpenSource:
    """Read a table with one task, because rows are numbered in the order in which the database returns them."""
    if not source.table:
        raise InvalidSetting("--table: is missing; name a table, or write a query in quotes")
    is_query = len(source.table.split()) > 1
    driver = find_driver(source.place)
    options: dict[str, Any] = {"fetchsize": FETCHED_ROWS, **({} if driver is None else {"driver": driver.name})}
    options |= source.reader_options
    options |= {"url": source.place, "query" if is_query else "dbtable": source.table, **_login(source.settings)}
    table = spark.read.format("jdbc").options(**options).load()
    _check_columns(table, source)
    frame = table.selectExpr("'' file", "monotonically_increasing_id() row", "struct(*) cells")
    frame = frame.repartition(spark.sparkContext.defaultParallelism)  # so that many tasks validate the rows
    return OpenSource(frame, CellReader({}, source.mapping, tuple(table.columns), source.name))


def _login(settings: Settings) -> dict[str, str]:
    password = find_secret(settings, "jdbc_password")
    return {name: value for name, value in (("user", settings.jdbc_user), ("password", password)) if value}


def _open_topic(spark: "SparkSession", source: Source) -> OpenSource:
    if source.mapping.lane is not None:
        raise InvalidSetting("--lane: is for rows; records tell theirs, or say where it is with --lane-from")
    topic = source.place.removeprefix(KAFKA_PREFIX)
    ranges = find_pieces(source.settings, topic, source.since, source.until)
    rows = [(each.topic, each.partition, each.begin, each.end) for each in ranges]
    frame = spark.createDataFrame(rows, "topic string, partition int, begin long, end long")  # pyright: ignore[reportUnknownMemberType] — also takes frames of pandas, which has no types
    # one task per offset range, so that no task waits for the records of another
    return OpenSource(frame.repartition(len(ranges)), RecordReader(source.mapping.options, source.settings))


def _check_columns(table: "DataFrame", source: Source) -> None:
    source.mapping.reader(table.columns, source.name)  # only a check: each task makes its own reader


def to_place(place: str) -> str:
    """Add the scheme to a path of this machine, because a cluster may take plain paths for another file system."""
    return f"file://{os.path.abspath(place)}" if os.path.exists(place) else place  # noqa: PTH100, PTH110 — a URI is no Path
