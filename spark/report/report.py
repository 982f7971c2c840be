"""The report: what became of a manifest's messages, by their receipts and by events, in Parquet and as an HTML page."""

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import GiveUp
from shared.settings import Settings
from spark.prepare.manifest import Manifest
from spark.prepare.summary import REASONS_MAX, count_reasons
from spark.report.page import Table, write_page
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

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0

LATENESS = Table(
    "lateness",
    "Lateness",
    "Cycles by how much later than due they began.",
    ("from_seconds", "cycles"),
    bounds=(1.0, 5.0, 15.0, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR, DAY),
)
INTERVALS = Table(
    "intervals",
    "Revisit intervals",
    "Cycles by the time until the message wants to come back.",
    ("from_seconds", "cycles"),
    bounds=(MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 3 * DAY, 7 * DAY, 30 * DAY),
)
CHANGES = Table(
    "changes",
    "Change rate",
    "Messages by the share of their visits that found a change: reasons that begin with 'changed', among those that "
    "begin with that or with 'unchanged'.",
    ("from_share", "messages"),
    bounds=(0.0001, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
)


def read_outcomes(spark: "SparkSession", place: str, settings: Settings) -> "DataFrame":
    """Give each event once, from Parquet, JSON lines or a topic ("kafka:" and its name); raises GiveUp."""
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
    # events that can't be read have no kind; a sender that missed an acknowledgement sends the same event again
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


def make_report(spark: "SparkSession", manifest: Manifest, outcomes: "DataFrame | None", folder: Path) -> list[Table]:
    """Write each table as `NAME.parquet`, and `report.html`; events of messages outside the manifest are ignored."""
    note = "Rows that can't become messages, by the field and the flaw; one reason stands for its like."
    rejects = _collect("rejects", "Rejected rows", note, count_reasons(manifest.read_rejects(spark)))
    tables = [_count_starts(spark, manifest), rejects]

    if outcomes is not None:
        named = manifest.read_messages(spark).select("kind", "id")
        events = outcomes.join(named, ["kind", "id"], "left_semi").cache()
        try:
            tables += _make_event_tables(events)
        finally:
            events.unpersist()

    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        _write_parquet(folder / f"{table.name}.parquet", table)

    (folder / "report.html").write_text(write_page(manifest, tables), "utf-8")
    return tables


def _count_starts(spark: "SparkSession", manifest: Manifest) -> Table:
    joined = manifest.read_messages(spark).join(manifest.read_last_receipts(spark), ["kind", "id"], "left")
    counts = {row[0]: row[1] for row in joined.groupBy(joined["receipt.outcome"]).count().collect()}
    rows = [
        ("rows of the source", manifest.rows),
        ("duplicates", manifest.duplicates),
        ("rejected at prepare", manifest.rejects),
        ("messages", manifest.messages),
        ("started", counts.get("started", 0)),
        ("already running", counts.get("already running", 0)),
        ("rejected by the server", counts.get("rejected", 0)),
        ("missing", counts.get(None, 0)),
    ]
    note = "Missing are messages without a receipt: running the start again starts them."

    return Table("starts", "Rows and starts", note, ("what", "rows"), rows)


def _make_event_tables(events: "DataFrame") -> list[Table]:
    again = events.where("outcome = 'again'")
    outcomes = _measure(events, ("kind", "lane", "outcome"), "round(avg(duration_seconds), 3) mean_seconds")
    quantiles = [f"round(percentile_approx(lateness_seconds, {q}D), 3) p{q * 100:g}" for q in (0.5, 0.95, 0.99)]
    lateness = _measure(events, ("lane",), *quantiles, "round(max(lateness_seconds), 3) max")
    outcomes_note = "Cycles by what they came to, and how long their handlers took."
    lateness_note = "Seconds between the moment at which a cycle was due and its begin."

    return [
        _collect("outcomes", "Cycles and outcomes", outcomes_note, outcomes),
        _collect("lateness_by_lane", "Lateness by lane", lateness_note, lateness),
        _distribute(LATENESS, events.selectExpr("lateness_seconds value")),
        _distribute(INTERVALS, again.selectExpr("cast(next_due_at as double) - cast(started_at as double) value")),
        _distribute(CHANGES, _find_shares(again)),
        _count_parked(events),
    ]


def _measure(events: "DataFrame", keys: tuple[str, ...], *measures: str) -> "DataFrame":
    from pyspark.sql.functions import expr  # noqa: PLC0415 — an extra, and slow to import

    return events.groupBy(*keys).agg(expr("count(*) cycles"), *map(expr, measures)).orderBy(*keys)


def _find_shares(again: "DataFrame") -> "DataFrame":
    visits = again.where("reason like 'changed%' or reason like 'unchanged%'")
    changed = visits.selectExpr("kind", "id", "if(reason like 'changed%', 1, 0) changed")
    return changed.groupBy("kind", "id").agg({"changed": "avg"}).toDF("kind", "id", "value")


def _distribute(empty: Table, values: "DataFrame") -> Table:
    """Count the column `value` in the buckets of a table: bucket n begins at the n-th bound, bucket 0 has no bound."""
    bounds = f"array({', '.join(f'{bound}D' for bound in empty.bounds)})"
    buckets = values.where("value is not null").selectExpr(f"size(filter({bounds}, bound -> value >= bound)) bucket")
    found = {row["bucket"]: row["count"] for row in buckets.groupBy("bucket").count().collect()}
    return replace(empty, rows=[(begin, found.get(n, 0)) for n, begin in enumerate((None, *empty.bounds))])


def _count_parked(events: "DataFrame") -> Table:
    reduced = events.selectExpr("kind", "id", "struct(version, attempt, started_at, state, reason) last")
    last = reduced.groupBy("kind", "id").agg({"last": "max"}).toDF("kind", "id", "last").where("last.state = 'parked'")
    counted = last.selectExpr("kind", "last.reason reason").groupBy("kind", "reason").count()
    found = counted.toDF("kind", "reason", "messages").orderBy("messages", "kind", "reason", ascending=[0, 1, 1])
    note = "Messages that failed for good; 'dormice parked' lists, replays and drops them."
    return _collect("parked", "Parked messages", note, found.limit(REASONS_MAX))


def _collect(name: str, title: str, note: str, frame: "DataFrame") -> Table:
    return Table(name, title, note, tuple(frame.columns), [tuple(row) for row in frame.collect()])


def _write_parquet(path: Path, table: Table) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    made = arrow.table(dict(zip(table.columns, map(list, columns), strict=True)))
    importlib.import_module("pyarrow.parquet").write_table(made, path)
