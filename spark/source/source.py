"""Sources: opens files, tables and topics as a frame of raw rows, with the reader of those rows for the tasks."""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, get_args

from shared.errors import GiveUp, InvalidSetting
from shared.settings import Settings, find_secret
from spark.source.parquet import ArrowTypes, open_parquet
from spark.source.raw_rows import CellReader, LineReader, RecordReader, RowReader, Starts
from spark.source.topic import open_ranges
from starter.files.mapping import RowMapping
from starter.files.rows import Line, check_format, read_first_record, read_names
from starter.files.rows import guess_form as guess_form_of_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Form = Literal["csv", "jsonl", "parquet", "jdbc", "kafka"]
FORMS: tuple[Form, ...] = get_args(Form)
KAFKA_PREFIX = "kafka:"

DRIVERS = {
    "jdbc:postgresql:": ("org.postgresql:postgresql:42.7.4", "org.postgresql.Driver"),
    "jdbc:mysql:": ("com.mysql:mysql-connector-j:9.1.0", "com.mysql.cj.jdbc.Driver"),
    "jdbc:mariadb:": ("org.mariadb.jdbc:mariadb-java-client:3.5.1", "org.mariadb.jdbc.Driver"),
    "jdbc:sqlite:": ("org.xerial:sqlite-jdbc:3.47.1.0", "org.sqlite.JDBC"),
}
"""Maven coordinates and class of a driver, by a URL's prefix; Java does not find the class in a fetched package."""

FETCHED_ROWS = 10_000  # from a database at a time; without it, some drivers load the whole result into memory

FILE = "_metadata.file_path"
BLOCK = "_metadata.file_block_start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where rows come from and how they are read."""

    place: str  # a path or pattern that Spark can read, a JDBC URL, or "kafka:" and a topic
    form: Form
    mapping: RowMapping = field(default_factory=RowMapping)
    spans_lines: bool = False
    table: str = ""  # the name of a database's table, or a query
    since: datetime | None = None  # this and `until` bound the records of a topic by their timestamps
    until: datetime | None = None
    settings: Settings = field(default_factory=Settings)  # they hold the login for a database or a topic
    reader_options: Mapping[str, str] = field(default_factory=dict[str, str])  # for Spark's own reader

    @property
    def name(self) -> str:
        """The name for files and messages, without a JDBC URL's parameters, which may hold a password."""
        return self.place.partition("?")[0] if self.form == "jdbc" else self.place


def guess_form(place: str) -> Form:
    """Find a source's form by its name; raises GiveUp when the name shows no known form."""
    if place.startswith("jdbc:"):
        return "jdbc"
    if place.startswith(KAFKA_PREFIX):
        return "kafka"
    if (form := guess_form_of_file(PurePosixPath(place.rstrip("/")).name)) is not None:
        return form  # pyright: ignore[reportReturnType] — the readers' forms are among ours
    raise GiveUp(f"{place}: its name tells no format; add --format with one of {', '.join(FORMS)}")


def packages_for(place: str) -> tuple[str, ...]:
    """Give the Maven coordinates of what Spark needs to read a place."""
    return tuple(package for prefix, (package, _) in DRIVERS.items() if place.startswith(prefix))


def open_source(spark: "SparkSession", source: Source) -> tuple["DataFrame", RowReader]:
    """Give a source's raw rows, numbered across all files in the order of their paths, and their reader."""
    if source.form == "kafka":
        return _open_topic(spark, source)
    source.mapping.check(source.form)
    if source.spans_lines and source.form != "csv":
        raise InvalidSetting("--multi-line: is for CSV, whose quoted cells may span lines; leave it out")
    if source.form == "jdbc":
        return _open_database(spark, source)
    if source.form == "parquet":
        return _open_parquet(spark, source)

    return _open_lines(spark, source)


def _open_lines(spark: "SparkSession", source: Source) -> tuple["DataFrame", RowReader]:
    if source.place.endswith(".zst"):
        raise GiveUp(f"{source.place}: Spark can't unpack Zstandard here; use gzip, or 'dormice load'")
    # the readers handle line ends other than \n, as in any file
    text = spark.read.options(lineSep="\n", **source.reader_options).text(to_place(source.place))
    frame = text.selectExpr(f"{FILE} file", f"{BLOCK} block", "cast(value as binary) value")
    starts = _find_starts(frame)
    if not starts:
        raise GiveUp(f"{source.place}: is empty; there is nothing to start")
    file, block = min(starts)
    first = frame.where((frame["file"] == file) & (frame["block"] == block)).take(2)
    lines = [Line.of(number, bytes(row["value"]) + b"\n", 0) for number, row in enumerate(first, start=1)]
    check_format(lines[0].raw, source.form, source.place)
    if source.form == "jsonl":
        return frame, LineReader(starts, source.mapping)

    table = source.mapping.table
    names, _ = read_names(lines, table, source.place)
    header = tuple(read_first_record(iter(lines), [], source.place)) if table.skips_first_line else ()
    source.mapping.reader(names, source.place, is_text=True)  # only a check: each task makes its own reader
    return frame, LineReader(starts, source.mapping, names, header, source.place, spans_lines=source.spans_lines)


def _find_starts(frame: "DataFrame") -> Starts:
    """Count the rows before each block, so that tasks can number rows in any order."""
    found = frame.groupBy("file", "block").count().collect()
    counted = sorted((row["file"], row["block"], row["count"]) for row in found)
    totals = itertools.accumulate((count for _, _, count in counted), initial=0)
    return {(file, block): total for (file, block, _), total in zip(counted, totals, strict=False)}


def _open_parquet(spark: "SparkSession", source: Source) -> tuple["DataFrame", RowReader]:
    table, types = open_parquet(spark, to_place(source.place), source.reader_options)
    return _open_table(table, f"{FILE} file", "_metadata.row_index row", source, types)


def _open_database(spark: "SparkSession", source: Source) -> tuple["DataFrame", RowReader]:
    """Read a table with one task, because rows are numbered in the order in which the database returns them."""
    if not source.table:
        raise InvalidSetting("--table: is missing; name a table, or write a query in quotes")

    what = "query" if len(source.table.split()) > 1 else "dbtable"
    login = {"user": source.settings.jdbc_user, "password": find_secret(source.settings, "jdbc_password")}
    options: dict[str, Any] = {"fetchsize": FETCHED_ROWS}

    for prefix, (_, name) in DRIVERS.items():
        if source.place.startswith(prefix):
            options["driver"] = name

    options |= {**source.reader_options, "url": source.place, what: source.table}
    options |= {name: text for name, text in login.items() if text}
    table = spark.read.format("jdbc").options(**options).load()
    frame, reader = _open_table(table, "'' file", "monotonically_increasing_id() row", source, {})

    return frame.repartition(spark.sparkContext.defaultParallelism), reader  # so that many tasks validate the rows


def _open_table(
    table: "DataFrame", file: str, row: str, source: Source, types: ArrowTypes
) -> tuple["DataFrame", RowReader]:
    source.mapping.reader(table.columns, source.name)  # only a check: each task makes its own reader
    starts: Starts = _find_starts(table.selectExpr(file, "0L block")) if source.form == "parquet" else {}
    frame = table.selectExpr(file, row, "struct(*) cells")
    return frame, CellReader(starts, source.mapping, tuple(table.columns), source.name, types)


def _open_topic(spark: "SparkSession", source: Source) -> tuple["DataFrame", RowReader]:
    if source.mapping.lane is not None:
        raise InvalidSetting("--lane: is for rows; records tell theirs, or say where it is with --lane-from")
    if source.mapping != RowMapping(source.mapping.options):
        raise InvalidSetting("--columns, --header, --fill-rows, --zone and --at: are for rows; leave them out")
    topic = source.place.removeprefix(KAFKA_PREFIX)
    frame = open_ranges(spark, source.settings, topic, source.since, source.until)
    return frame, RecordReader(source.mapping.options, source.settings)


def to_place(place: str) -> str:
    """Add the scheme to a path of this machine, because a cluster may take plain paths for another file system."""
    return f"file://{os.path.abspath(place)}" if os.path.exists(place) else place  # noqa: PTH100, PTH110 — a URI is no Path
