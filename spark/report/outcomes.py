"""Outcomes: the events about the result of each cycle of a message, from files or a topic, as one typed frame."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from shared.errors import GiveUp
from shared.settings import Settings
from spark.source.source import KAFKA_PREFIX, to_place
from spark.source.topic import open_ranges, read_ranges
from spark.tables import columns_of, to_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTCOMES_DDL = (
    "kind string, id string, version long, outcome string, state string, reason string, lane string, "
    "due_at timestamp, started_at timestamp, duration_seconds double, lateness_seconds double, attempt int, "
    "next_due_at timestamp"
)
"""Fields of an event (schema_version 1) that a report needs; moments may be RFC 3339 text."""


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
    columns = columns_of(OUTCOMES_DDL)
    if missing := [name for name in columns if name not in events.columns]:
        raise GiveUp(f"--outcomes: {place} has no column {missing[0]!r}; give events as dormice writes them")
    typed = events.selectExpr(*(f"cast({name} as {kind}) {name}" for name, kind in columns.items()))
    # a sender that missed the acknowledgement of an event sends the same event again
    return typed.where("kind is not null").dropDuplicates(["kind", "id", "version", "attempt", "started_at"])


def _parse(lines: "DataFrame") -> "DataFrame":
    ddl = OUTCOMES_DDL.replace(" timestamp", " string")
    return lines.selectExpr(f"from_json(value, '{ddl}') event").select("event.*")


def _read_topic(spark: "SparkSession", topic: str, settings: Settings) -> "DataFrame":
    def read(batches: Iterable[Any]) -> Iterator[Any]:
        records = read_ranges(settings, batches)
        return to_batches((((record.value or b"").decode(errors="replace"),) for record in records), ddl)

    ddl = "value string"
    return open_ranges(spark, settings, topic).mapInArrow(read, ddl)  # pyright: ignore[reportUnknownMemberType] — pyarrow has no types
