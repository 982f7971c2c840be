"""Outcomes: the events about the result of each cycle of a message, from files or a topic, as one typed frame."""

import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from shared.errors import GiveUp
from shared.settings import Settings
from spark.prepare.manifest import names_of
from spark.source.source import KAFKA_PREFIX, to_place
from spark.source.topic import OffsetRange, find_pieces, read_piece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTCOMES_DDL = (
    "kind string, id string, version long, outcome string, state string, reason string, lane string, "
    "due_at timestamp, started_at timestamp, duration_seconds double, lateness_seconds double, attempt int, "
    "next_due_at timestamp"
)
"""Fields of an event (schema_version 1) that a report needs; moments may be RFC 3339 text."""

PIECES_DDL = "topic string, partition int, begin long, end long"
BATCH_RECORDS = 5000


def read_outcomes(spark: "SparkSession", place: str, settings: Settings) -> "DataFrame":
    """Give each event once, from a Parquet file or folder, from JSON lines, or from a topic ("kafka:" and its name).

    Events that can't be read have no kind and are left out. Raises GiveUp for a Parquet table that lacks a column.
    """
    if place.startswith(KAFKA_PREFIX):
        events = _parse(_read_topic(spark, place.removeprefix(KAFKA_PREFIX), settings))
    elif place.removesuffix(".gz").endswith((".jsonl", ".ndjson", ".json")):
        events = _parse(spark.read.text(to_place(place)))
    else:
        events = spark.read.parquet(to_place(place))
    if missing := [name for name in names_of(OUTCOMES_DDL) if name not in events.columns]:
        raise GiveUp(f"--outcomes: {place} has no column {missing[0]!r}; give events as dormice writes them")
    columns = (column.split() for column in OUTCOMES_DDL.split(", "))
    typed = events.selectExpr(*(f"cast({name} as {kind}) {name}" for name, kind in columns))
    # a sender that missed the acknowledgement of an event sends the same event again
    return typed.where("kind is not null").dropDuplicates(["kind", "id", "version", "attempt", "started_at"])


def _parse(lines: "DataFrame") -> "DataFrame":
    ddl = OUTCOMES_DDL.replace(" timestamp", " string")
    return lines.selectExpr(f"from_json(value, '{ddl}') event").select("event.*")


def _read_topic(spark: "SparkSession", topic: str, settings: Settings) -> "DataFrame":
    ranges = find_pieces(settings, topic, None, None)
    rows = [(each.topic, each.partition, each.begin, each.end) for each in ranges]
    frame: Any = spark.createDataFrame(rows, PIECES_DDL)  # pyright: ignore[reportUnknownMemberType] — takes frames of pandas too, which has no types
    return frame.repartition(len(ranges)).mapInArrow(_make_reader(settings), "value string")


def _make_reader(settings: Settings) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def read(batches: Iterable[Any]) -> Iterator[Any]:
        arrow: Any = importlib.import_module("pyarrow")
        values: list[str] = []
        for batch in batches:
            for cells in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                for record in read_piece(settings, OffsetRange(*cells)):
                    values.append((record.value or b"").decode(errors="replace"))
                    if len(values) == BATCH_RECORDS:
                        yield arrow.RecordBatch.from_pydict({"value": values})
                        values = []
        yield arrow.RecordBatch.from_pydict({"value": arrow.array(values, arrow.string())})

    return read
