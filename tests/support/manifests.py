"""Manifests written by hand, and what their receipts say."""

import asyncio
import importlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from spark.format.data_source import register_temporal
from spark.prepare.manifest import DESCRIPTION, Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Result = TypeVar("Result")

_arrow: Any = importlib.import_module("pyarrow")  # it has no type stubs
_parquet: Any = importlib.import_module("pyarrow.parquet")

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)

_SCHEMA = _arrow.schema(
    [
        ("row", _arrow.int64()),
        ("kind", _arrow.string()),
        ("id", _arrow.string()),
        ("scheduled_at", _arrow.timestamp("us", tz="UTC")),
        ("tolerance_seconds", _arrow.float64()),
        ("priority", _arrow.int32()),
        ("tenant", _arrow.string()),
        ("payload", _arrow.string()),
        ("correlation_id", _arrow.string()),
        ("idempotency_key", _arrow.string()),
        ("expires_at", _arrow.timestamp("us", tz="UTC")),
    ]
)


def write_manifest(folder: Path, rows: Iterable[Mapping[str, Any]]) -> Manifest:
    """Write a manifest of messages on lane `short` that are due tomorrow, unless a row says otherwise."""
    usual = {"scheduled_at": LATER, "tolerance_seconds": 0.0, "priority": 3, "tenant": "", "payload": "null"}
    more = {"correlation_id": "", "idempotency_key": ""}
    messages = [{"row": number, **usual, **more, **row} for number, row in enumerate(rows, 1)]
    lane = folder / "messages" / "lane=short"
    lane.mkdir(parents=True)
    _parquet.write_table(_arrow.Table.from_pylist(messages, schema=_SCHEMA), lane / "part-0.parquet")
    manifest = Manifest(
        folder=folder.resolve(),
        id=uuid.uuid4().hex,
        created_at=LATER.isoformat(),
        source="a test",
        source_digest="",
        content_digest="",
        rows=len(messages),
        messages=len(messages),
        duplicates=0,
        rejects=0,
        options={},
    )
    (folder / DESCRIPTION).write_text(json.dumps(manifest.describe()))

    return manifest


def read_receipts(place: Manifest | str) -> list[dict[str, Any]]:
    """Give all receipts of a manifest, or in a folder."""
    folder = place.folder / "receipts" if isinstance(place, Manifest) else Path(place)
    return [row for path in sorted(folder.glob("[!_.]*.parquet")) for row in _parquet.read_table(path).to_pylist()]


def make_frame(spark: "SparkSession", rows: Iterable[tuple[Any, ...]], ddl: str) -> "DataFrame":
    """Make a frame of rows."""
    untyped = cast("Any", spark)  # pyspark's types name pandas, which has none of its own here
    return untyped.createDataFrame(rows, ddl)


async def in_thread(spark: "SparkSession", call: Callable[[], Result]) -> Result:
    """Let Spark work while this process goes on; its JVM knows the session of a thread only once that has used it."""

    def run() -> Result:
        make_frame(spark, [], "n int")
        register_temporal(spark)
        return call()

    return await asyncio.to_thread(run)
