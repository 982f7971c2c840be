"""The summary of a manifest: messages by kind and lane, why rows were rejected, and how many messages are due when."""

import csv
import itertools
import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from spark.prepare.manifest import MESSAGES_DDL, Manifest
from spark.tables import columns_of
from starter.insight.plots import draw_due_curve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

BUCKETS_MAX = 60
REASONS_MAX = 50
WIDTHS = (1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
"""Seconds that a bucket of the due curve may cover: units that are familiar to people."""


def count_messages(messages: "DataFrame", begin: datetime) -> "list[Row]":
    """Give, by kind and lane, count and digest of the messages, and when the first and the last are due.

    The digest does not depend on the order of the messages. One pass finds all of it.
    """
    due = _find_due(begin)
    digest = f"bit_xor(xxhash64({', '.join(columns_of(MESSAGES_DDL))}))"
    measures = ("count(*) messages", f"{digest} digest", f"min({due}) first", f"max({due}) last")
    from pyspark.sql import functions as f  # noqa: PLC0415 — an extra, and slow to import

    counted = messages.groupBy("kind", "lane").agg(*map(f.expr, measures)).collect()
    return sorted(counted, key=lambda row: (row["kind"], row["lane"]))


def write_summary(spark: "SparkSession", manifest: Manifest, counted: "Sequence[Row]", begin: datetime) -> None:
    """Write summary.json, due.csv and due.png; `counted` comes from `count_messages`, with the same begin."""
    reasons = count_reasons(manifest.read_rejects(spark)).collect() if manifest.rejects else []
    document = {
        "manifest": manifest.id,
        **{name: getattr(manifest, name) for name in ("rows", "messages", "duplicates", "rejects")},
        "by_kind_and_lane": [{name: row[name] for name in ("kind", "lane", "messages")} for row in counted],
        "reject_reasons": [row.asDict() for row in reasons],
    }
    (manifest.folder / "summary.json").write_text(json.dumps(document, ensure_ascii=False, indent=2) + "\n", "utf-8")
    width, buckets = _make_due_curve(manifest.read_messages(spark), counted, begin)
    (manifest.folder / "due.png").write_bytes(draw_due_curve(buckets, width))

    with (manifest.folder / "due.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(("due_from", "messages", "messages_so_far"))
        totals = itertools.accumulate(count for _, count in buckets)
        for (start, count), so_far in zip(buckets, totals, strict=True):
            table.writerow((start.isoformat().replace("+00:00", "Z"), count, so_far))


def read_summary(manifest: Manifest) -> dict[str, Any]:
    """Give the content of a manifest's summary.json."""
    return json.loads((manifest.folder / "summary.json").read_text("utf-8"))


def count_reasons(rejects: "DataFrame") -> "DataFrame":
    """Give field, flaw, number of rows and one reason as an example (reasons quote values), most frequent first."""
    from pyspark.sql import functions as f  # noqa: PLC0415 — an extra, and slow to import

    grouped = rejects.groupBy("field", "flaw").agg(f.count("*").alias("rows"), f.min("reason").alias("example"))
    return grouped.orderBy("rows", "field", "flaw", ascending=[False, True, True]).limit(REASONS_MAX)


def _make_due_curve(
    messages: "DataFrame", counted: "Sequence[Row]", begin: datetime
) -> tuple[int, list[tuple[datetime, int]]]:
    """Give how many messages have their first run in each bucket, and the seconds that a bucket covers."""
    if not counted:
        return WIDTHS[0], []

    length = max(row["last"] for row in counted) - min(row["first"] for row in counted)
    width = next((width for width in WIDTHS if length <= width * (BUCKETS_MAX - 1)), WIDTHS[-1])
    due = messages.selectExpr(f"{_find_due(begin)} due")
    found = {row[0]: row[1] for row in due.groupBy(due["due"] - due["due"] % width).count().collect()}
    starts = range(min(found), max(found) + width, width)
    return width, [(datetime.fromtimestamp(start, UTC), found.get(start, 0)) for start in starts]


def _find_due(begin: datetime) -> str:
    """Give the expression for the second in which a message is due; those without `scheduled_at` are due at `begin`."""
    return f"coalesce(unix_seconds(scheduled_at), {math.floor(begin.timestamp())}L)"
