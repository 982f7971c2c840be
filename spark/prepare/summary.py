"""The summary of a manifest: messages by kind and lane, why rows were rejected, and how many messages are due when."""

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark.prepare.manifest import Manifest
from starter.insight.plots import draw_due_curve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUCKETS_MAX = 60
REASONS_MAX = 50
WIDTHS = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
"""Seconds that a bucket of the due curve may cover: units that are familiar to people."""


@dataclass(frozen=True, slots=True)
class DueCurve:
    """How many messages have their first run in each bucket of `width_seconds`."""

    width_seconds: int
    buckets: list[tuple[datetime, int]]


def write_summary(spark: "SparkSession", manifest: Manifest, begin: datetime) -> None:
    """Write summary.json, due.csv and due.png into the manifest's folder.

    A message without `scheduled_at` is due at once; the curve counts it at `begin`.
    """
    curve = _make_due_curve(spark, manifest, begin)
    document = {
        "manifest": manifest.id,
        "rows": manifest.rows,
        "messages": manifest.messages,
        "duplicates": manifest.duplicates,
        "rejects": manifest.rejects,
        "by_kind_and_lane": _count_kinds(spark, manifest),
        "reject_reasons": _count_reasons(spark, manifest),
    }
    folder = manifest.folder
    (folder / "summary.json").write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", "utf-8")
    _write_table(folder / "due.csv", curve)
    (folder / "due.png").write_bytes(draw_due_curve(curve.buckets, curve.width_seconds))


def read_summary(manifest: Manifest) -> dict[str, Any]:
    """Give the content of a manifest's summary.json."""
    return json.loads((manifest.folder / "summary.json").read_text("utf-8"))


def _count_kinds(spark: "SparkSession", manifest: Manifest) -> list[dict[str, Any]]:
    counted = manifest.read_messages(spark).groupBy("kind", "lane").count().orderBy("kind", "lane")
    return [{"kind": row["kind"], "lane": row["lane"], "messages": row["count"]} for row in counted.collect()]


def _count_reasons(spark: "SparkSession", manifest: Manifest) -> list[dict[str, Any]]:
    """Count by field and flaw, most frequent first; the sentences quote values, so one is kept as an example."""
    return [row.asDict() for row in count_reasons(manifest.read_rejects(spark)).collect()]


def count_reasons(rejects: "DataFrame") -> "DataFrame":
    """Give field, flaw, number of rows and one reason as an example, most frequent first."""
    from pyspark.sql import functions as f  # noqa: PLC0415 — an extra, and slow to import

    grouped = rejects.groupBy("field", "flaw").agg(f.count("*").alias("rows"), f.min("reason").alias("example"))
    return grouped.orderBy("rows", "field", "flaw", ascending=[False, True, True]).limit(REASONS_MAX)


def _make_due_curve(spark: "SparkSession", manifest: Manifest, begin: datetime) -> DueCurve:
    now = math.floor(begin.timestamp())
    due = manifest.read_messages(spark).selectExpr(f"coalesce(unix_seconds(scheduled_at), {now}L) due")
    span = due.selectExpr("min(due) first", "max(due) last").first()
    if span is None or span["first"] is None:
        return DueCurve(WIDTHS[0], [])
    width = choose_width(span["last"] - span["first"])
    counted = due.groupBy(due["due"] - due["due"] % width).count().collect()
    found = {row[0]: row[1] for row in counted}
    starts = range(min(found), max(found) + width, width)
    return DueCurve(width, [(datetime.fromtimestamp(start, UTC), found.get(start, 0)) for start in starts])


def choose_width(seconds: int) -> int:
    """Give the smallest of WIDTHS that covers the time in BUCKETS_MAX buckets, or the largest if none does."""
    return next((width for width in WIDTHS if seconds <= width * (BUCKETS_MAX - 1)), WIDTHS[-1])


def _write_table(path: Path, curve: DueCurve) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("due_from", "messages", "messages_so_far"))
        so_far = 0
        for start, count in curve.buckets:
            so_far += count
            table.writerow((start.isoformat().replace("+00:00", "Z"), count, so_far))
