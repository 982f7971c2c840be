"""Prepare: turns the rows of any source into a manifest, the same one whatever the number of tasks."""

import json
import os
import shutil
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import GiveUp, InvalidSetting
from shared.lanes import LANES
from shared.messages.envelope import EnvelopeRules
from spark.prepare.manifest import DESCRIPTION, MESSAGES_DDL, REJECTS_DDL, Manifest
from spark.prepare.summary import count_messages, write_summary
from spark.prepare.validator import VERDICTS_DDL, Validator
from spark.source.source import Source, open_source
from spark.tables import columns_of, read_table, to_uri
from starter.files.duplicates import DuplicateRule
from starter.local.disk import explain_write_error, is_full_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_NO_LANE = "lane=__HIVE_DEFAULT_PARTITION__"
"""Folder in which Spark keeps what has no lane: the rejects."""
_GIVEN_AT = "given_at timestamp"
UNCUT_BYTES = 2**60
"""More than any file has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """How rows become messages.

    Of several rows with the same (kind, id) one counts: with "newest" the one with the latest `scheduled_at` (the last
    of several or of none), else the first.
    """

    rules: EnvelopeRules
    duplicates: DuplicateRule = "newest"
    spread: timedelta = timedelta(0)  # first runs that are due by `begin` are spread over it from then on
    begin: datetime = field(default_factory=lambda: datetime.now(UTC))
    partitions: int | None = None  # number of tasks, which does not change the content; None: Spark's choice


def prepare(spark: "SparkSession", source: Source, target: Path, options: PrepareOptions) -> Manifest:
    """Write a source's manifest into a new folder, complete or not at all; raises GiveUp for one without messages."""
    check_target(target)
    session = configure(spark, source, options)
    with _in_place(target) as part:
        all_rows = _write_rows(session, source, part, options)
        counted = count_messages(read_table(session, part / "messages", MESSAGES_DDL), options.begin)
        manifest = _describe(source, part, options, all_rows, counted)
        write_summary(session, manifest, counted, options.begin)
        (part / DESCRIPTION).write_text(json.dumps(manifest.describe(), ensure_ascii=False, indent=2) + "\n", "utf-8")

    return Manifest.load(target)


def check_target(target: Path) -> None:
    """Raise InvalidSetting for a path where no new manifest can be."""
    if "://" in str(target):
        raise InvalidSetting(
            f"MANIFEST: is {str(target)[:60]!r}; give a folder that this machine and all executors have mounted"
        )
    if target.exists():
        raise InvalidSetting(f"MANIFEST: {target} is there already; give another path, or delete it")


def configure(spark: "SparkSession", source: Source, options: PrepareOptions) -> "SparkSession":
    """Give a session with a configuration of its own, which says into how many tasks a source is cut."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # counts are small: no more tasks for them than run at once
    session.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    # a task writes the files of all lanes and of its rejects at once, and need not sort them
    session.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(len(LANES) + 1))
    pieces = options.partitions

    if source.spans_lines:
        # a cell that spans lines must not be cut in two, in a file of whatever size
        pieces = 1
        session.conf.set("spark.sql.files.maxPartitionBytes", str(UNCUT_BYTES))

    if pieces is not None:
        session.conf.set("spark.sql.files.minPartitionNum", str(pieces))
        session.conf.set("spark.sql.files.openCostInBytes", "1")

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


def _write_rows(spark: "SparkSession", source: Source, folder: Path, options: PrepareOptions) -> Mapping[str, int]:
    """Write messages and rejects in one pass; gives the number of rows and of rejects, and the digest of the rows."""
    from pyspark.sql import Observation  # noqa: PLC0415 — an extra, and slow to import
    from pyspark.sql import functions as f  # noqa: PLC0415

    frame, reader = open_source(spark, source)
    validator = Validator(reader, options.rules, options.begin, options.spread)
    checked = frame.mapInArrow(validator.validate, VERDICTS_DDL)  # pyright: ignore[reportUnknownMemberType] — pyarrow has no types
    seen = Observation()
    measures = ("count(*) AS `rows`", "count(field) AS rejects", "bit_xor(digest) AS digest")
    messages = folder / "messages"
    rejects = folder / "rejects"
    checked.observe(seen, *map(f.expr, measures)).drop("digest").write.partitionBy("lane").parquet(to_uri(messages))
    counts: Mapping[str, int] = seen.get
    if not counts["rows"]:
        raise GiveUp(f"{source.name}: holds no rows; there is nothing to start")
    refused = read_table(spark, messages / _NO_LANE, REJECTS_DDL)
    refused.sortWithinPartitions("row").write.parquet(to_uri(rejects))
    shutil.rmtree(messages / _NO_LANE, ignore_errors=True)
    if _has_duplicates(read_table(spark, messages, MESSAGES_DDL), counts["rows"] - counts["rejects"]):
        verdicts = messages.rename(folder / "verdicts")
        kept = _drop_duplicates(read_table(spark, verdicts, f"{MESSAGES_DDL}, {_GIVEN_AT}"), options)
        kept.write.partitionBy("lane").parquet(to_uri(messages))
        shutil.rmtree(verdicts)
    return counts


def _describe(
    source: Source, folder: Path, options: PrepareOptions, all_rows: Mapping[str, int], counted: "Sequence[Row]"
) -> Manifest:
    messages = 0
    digest = 0

    for row in counted:
        messages = messages + row["messages"]
        digest = digest ^ row["digest"]

    return Manifest(
        folder=folder,
        id=uuid.uuid4().hex,
        created_at=_write_moment(datetime.now(UTC)),
        source=source.name,
        source_digest=_write_digest(all_rows["digest"]),
        content_digest=_write_digest(digest),
        rows=all_rows["rows"],
        messages=messages,
        duplicates=all_rows["rows"] - all_rows["rejects"] - messages,
        rejects=all_rows["rejects"],
        options={
            "format": source.form,
            "duplicates": options.duplicates,
            "spread_seconds": options.spread.total_seconds(),
            "begin": _write_moment(options.begin) if options.spread else None,
        },
    )


def _has_duplicates(valid: "DataFrame", count: int) -> bool:
    """Say whether a (kind, id) may have come twice: by hashes, which take a small part of the time of a look at all."""
    (found,) = valid.selectExpr("count(DISTINCT xxhash64(kind, id)) AS names").collect()
    return found["names"] < count


def _drop_duplicates(valid: "DataFrame", options: PrepareOptions) -> "DataFrame":
    """Keep one row of each (kind, id)."""
    order = "given_at DESC NULLS LAST, `row` DESC" if options.duplicates == "newest" else "`row`"
    partitions = options.partitions or valid.sparkSession.sparkContext.defaultParallelism
    ranked = valid.repartition(partitions, "kind", "id").selectExpr(
        "*", f"row_number() OVER (PARTITION BY kind, id ORDER BY {order}) AS rank"
    )
    return ranked.where("rank = 1").selectExpr(*columns_of(MESSAGES_DDL))


def _write_digest(value: int | None) -> str:
    return f"{(value or 0) & 0xFFFFFFFFFFFFFFFF:016x}"


def _write_moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
