"""Prepare: turns the rows of any source into a manifest, the same one whatever the number of tasks."""

import json
import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import GiveUp, InvalidSetting
from shared.messages.envelope import EnvelopeRules
from spark.prepare.manifest import DESCRIPTION, MESSAGES_DDL, REJECTS_DDL, Manifest, names_of, read_table, to_uri
from spark.prepare.summary import write_summary
from spark.prepare.validator import VERDICTS_DDL, Spread, Validator
from spark.source.source import OpenSource, Source, open_source
from starter.files.duplicates import DuplicateRule
from starter.local.disk import explain_write_error, is_full_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How rows become messages.

    `duplicates` says which of several rows with the same (kind, id) counts: "newest" is the one with the latest
    `scheduled_at` (the last of them, if several have it or none has one), else it is the first row. First runs that are
    due by `begin` are spread over `spread` from then on. `partitions` is the number of tasks (None: Spark's choice); it
    does not change the content.
    """

    rules: EnvelopeRules
    duplicates: DuplicateRule = "newest"
    spread: timedelta = timedelta(0)
    begin: datetime = field(default_factory=lambda: datetime.now(UTC))
    partitions: int | None = None


def prepare(spark: "SparkSession", source: Source, target: Path, options: PrepareOptions) -> Manifest:
    """Write the manifest of a source into a folder that does not exist yet; the folder appears complete or not at all.

    Raises GiveUp for a source that can't give any message, and InvalidSetting for options that can't be used.
    """
    if "://" in str(target):
        raise InvalidSetting(
            f"MANIFEST: is {str(target)[:60]!r}; give a folder that this machine and all executors have mounted"
        )
    if target.exists():
        raise InvalidSetting(f"MANIFEST: {target} is there already; give another path, or delete it")
    session = _configure(spark, source, options)
    with _in_place(target) as part:
        manifest = _write(session, open_source(session, source), source, part, options)
        write_summary(session, manifest, options.begin)
        (part / DESCRIPTION).write_text(json.dumps(manifest.describe(), ensure_ascii=False, indent=2) + "\n", "utf-8")
    return Manifest.load(target)


def _configure(spark: "SparkSession", source: Source, options: PrepareOptions) -> "SparkSession":
    """Give a session of the same Spark with a configuration of its own for this job."""
    session = spark.newSession()
    wanted = {"spark.sql.session.timeZone": "UTC"}
    pieces = 1 if source.spans_lines else options.partitions  # a cell that spans lines must not be cut in two
    if pieces is not None:
        wanted |= {"spark.sql.files.minPartitionNum": str(pieces), "spark.sql.files.openCostInBytes": "1"}
    for name, value in wanted.items():
        session.conf.set(name, value)
    return session


@contextmanager
def _in_place(target: Path) -> Generator[Path]:
    """Give a folder beside the target; it is renamed to the target at the end, or deleted when something fails."""
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(target)
    except OSError as exc:
        if exc.filename is None and not is_full_error(exc):
            raise
        raise explain_write_error("MANIFEST", target, exc) from exc
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write(
    spark: "SparkSession", opened: OpenSource, source: Source, folder: Path, options: PrepareOptions
) -> Manifest:
    from pyspark import StorageLevel  # noqa: PLC0415 — an extra, and slow to import
    from pyspark.sql import functions as f  # noqa: PLC0415

    validator = Validator(opened.reader, options.rules, Spread(options.begin, options.spread))
    checked = opened.frame.mapInArrow(validator.judge, VERDICTS_DDL)  # pyright: ignore[reportUnknownMemberType] — pyarrow has no types
    verdicts = checked.persist(StorageLevel.DISK_ONLY)
    try:
        (counted,) = verdicts.agg(
            f.count("*").alias("rows"), f.count("field").alias("rejects"), f.bit_xor("digest").alias("digest")
        ).collect()
        if not counted["rows"]:
            raise GiveUp(f"{source.name}: holds no rows; there is nothing to start")
        valid = verdicts.where("field is null")
        kept = _settle(valid, options, options.partitions or spark.sparkContext.defaultParallelism)
        kept.write.partitionBy("lane").parquet(to_uri(folder / "messages"))
        refused = verdicts.where("field is not null").selectExpr(*names_of(REJECTS_DDL))
        refused.sortWithinPartitions("row").write.parquet(to_uri(folder / "rejects"))
    finally:
        verdicts.unpersist()
    messages, content = _look_at(read_table(spark, folder / "messages", MESSAGES_DDL))
    return Manifest(
        folder=folder,
        id=uuid.uuid4().hex,
        created_at=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        source=source.name,
        source_digest=_write_digest(counted["digest"]),
        content_digest=content,
        rows=counted["rows"],
        messages=messages,
        duplicates=counted["rows"] - counted["rejects"] - messages,
        rejects=counted["rejects"],
        options=_describe(source, options),
    )


def _settle(valid: "DataFrame", options: PrepareOptions, partitions: int) -> "DataFrame":
    """Keep one row of each (kind, id), and sort each task's messages in an order that does not depend on the tasks."""
    from pyspark.sql import Window  # noqa: PLC0415 — an extra, and slow to import
    from pyspark.sql import functions as f  # noqa: PLC0415

    newest = (f.desc_nulls_last("told_at"), f.desc("row"))
    order = newest if options.duplicates == "newest" else (f.asc("row"),)
    rank = f.row_number().over(Window.partitionBy("kind", "id").orderBy(*order))
    ranked = valid.repartition(partitions, "kind", "id").withColumn("rank", rank)
    return ranked.where("rank = 1").selectExpr(*names_of(MESSAGES_DDL)).sortWithinPartitions("lane", "kind", "id")


def _look_at(messages: "DataFrame") -> tuple[int, str]:
    """Count the written messages, and give the digest of their content, which does not depend on their order."""
    found = messages.selectExpr("count(*) messages", f"bit_xor(xxhash64({', '.join(names_of(MESSAGES_DDL))})) digest")
    (row,) = found.collect()
    return row["messages"], _write_digest(row["digest"])


def _write_digest(value: int | None) -> str:
    return f"{(value or 0) & 0xFFFFFFFFFFFFFFFF:016x}"


def _describe(source: Source, options: PrepareOptions) -> dict[str, str | float | None]:
    return {
        "format": source.form,
        "duplicates": options.duplicates,
        "spread_seconds": options.spread.total_seconds(),
        "begin": options.begin.isoformat().replace("+00:00", "Z") if options.spread else None,
    }
