"""The job behind `dormice spark start`: starts the messages of a manifest that have no receipt yet."""

import asyncio
import importlib
import math
import shutil
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activities.registry import declared_packs, load_registry
from shared.messages.placement import Layout, pack_index, pack_workflow_id, workflow_id
from shared.settings import Settings
from spark.format.data_source import FORMAT, register_temporal
from spark.prepare.manifest import Manifest
from spark.session.faults import translate_spark_errors
from spark.tasks.options import read_write_options, write_connection_options, write_settings_options
from spark.tasks.receipts import StartCounts, read_notes
from spark.tasks.starting import connect_checked
from starter.files.progress import Progress, open_progress
from starter.starting.layouts import Layouts
from starter.starting.receipts import StartOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TASK = 50_000  # a lost task is repeated as a whole, so its starts should take a few minutes only

_REJECTED = f"outcome = '{StartOutcome.REJECTED.value}'"
_NAME = ["kind", "id"]
_PLACE = "_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options of a start."""

    tasks: int | None = None  # if None, one per core, or one per ROWS_PER_TASK rows if that is more
    retries_rejected: bool = False  # whether rows that were rejected before are tried again
    restarts_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSummary:
    """The result of a start; its counts come from the receipts."""

    manifest: str  # id of the manifest
    messages: int
    now: StartCounts  # what this start added
    in_all: StartCounts  # all receipts of the manifest
    seconds: float

    @property
    def missing(self) -> int:
        """Messages without a receipt."""
        return self.messages - self.in_all.total

    @property
    def is_clean(self) -> bool:
        """Whether every message has a receipt and none was rejected."""
        return self.missing == 0 and self.in_all.rejected == 0

    def dump(self) -> dict[str, Any]:
        """Give the summary as JSON."""
        return {**asdict(self), "missing": self.missing}


def start_manifest(
    session: "SparkSession",
    manifest: Manifest,
    settings: Settings,
    environ: Mapping[str, str],
    options: StartOptions | None = None,
) -> StartSummary:
    """Start the messages of a manifest that have no receipt, and show the progress on standard error.

    Idempotent: the manifest's id is the session of all its starts, so a message that an interrupted start has already
    started gets the same answer again. Raises RetryLater when the server stays unreachable: then repeat the same start.
    """
    with translate_spark_errors():
        given = write_connection_options(environ) | write_settings_options(settings)
        return _start(session, manifest, given, options or StartOptions())


def _start(
    session: "SparkSession", manifest: Manifest, given: Mapping[str, str], options: StartOptions
) -> StartSummary:
    began, run = time.monotonic(), uuid.uuid4().hex
    folder = manifest.folder / "receipts"
    notes = folder / f"_progress-{run}"
    given = {
        **given,
        "receipts": str(folder),
        "progress": str(notes),
        "session": manifest.id,
        "run": run,
        "restartFinished": str(options.restarts_finished),
    }
    layouts = asyncio.run(_fix_layouts(given, manifest.find_kinds(session)))
    before = _count_receipts(session, manifest)
    settled = before.total - (before.rejected if options.retries_rejected else 0)
    if (left := manifest.messages - settled) > 0:
        cores = session.sparkContext.defaultParallelism
        tasks = options.tasks or max(cores, math.ceil(left / ROWS_PER_TASK))
        receipts = manifest.read_receipts(session)
        done = receipts.filter(f"NOT {_REJECTED}") if options.retries_rejected else receipts
        unsettled = manifest.read_messages(session).join(done.select(*_NAME), _NAME, "left_anti")
        given["tasksAtOnce"] = str(min(tasks, cores))
        with _watching(notes, left):
            _save(_share_out(unsettled, layouts, tasks), given)
    after = _count_receipts(session, manifest)
    return StartSummary(
        manifest=manifest.id,
        messages=manifest.messages,
        now=after - before,
        in_all=after,
        seconds=time.monotonic() - began,
    )


async def _fix_layouts(given: Mapping[str, str], kinds: Iterable[str]) -> dict[str, Layout]:
    """Check the server and fix the layouts first, so that what would fail every row fails before any row starts."""
    options = read_write_options({**given, "tasksAtOnce": "1"})
    registry = load_registry(options.settings)
    client = await connect_checked(options.connection, options.settings)
    layouts = Layouts(client, options.settings, declared_packs(registry))
    found = [await layouts.ensure(kind, registry[kind].lane) for kind in kinds if kind in registry]
    return {layout.kind: layout for layout in found if layout is not None}


def _count_receipts(session: "SparkSession", manifest: Manifest) -> StartCounts:
    """Count messages by the outcome of their start; one that succeeded after a rejection is not rejected."""
    receipts = manifest.read_receipts(session)
    counts = StartCounts()
    for row in receipts.groupBy("outcome").count().collect():
        counts.add(StartOutcome(row[0]), row[1])
    if counts.rejected:
        rejected = receipts.filter(_REJECTED).select(*_NAME).distinct()
        others = receipts.filter(f"NOT {_REJECTED}")
        counts.rejected = rejected.count() - others.join(rejected.hint("broadcast"), _NAME, "left_semi").count()
    return counts


def _share_out(frame: "DataFrame", layouts: Mapping[str, Layout], tasks: int) -> "DataFrame":
    """Choose the partitioning: one task owns all rows of a pack, side by side and in the same order at each attempt."""
    if not layouts:
        return frame.repartition(tasks, *_NAME).sortWithinPartitions(*_NAME)

    def find(kind: str, message_id: str) -> str:
        if (layout := layouts.get(kind)) is None:
            return workflow_id(kind, message_id)
        return pack_workflow_id(kind, pack_index(message_id, layout.packs))

    functions: Any = importlib.import_module("pyspark.sql.functions")
    placed = frame.withColumn(_PLACE, functions.udf(find, "string", useArrow=True)(*_NAME))
    return placed.repartition(tasks, _PLACE).sortWithinPartitions(_PLACE, "id").drop(_PLACE)


def _save(frame: "DataFrame", given: Mapping[str, str]) -> None:
    context, tag = frame.sparkSession.sparkContext, given["run"]
    register_temporal(frame.sparkSession)
    context.addJobTag(tag)
    try:
        frame.write.format(FORMAT).mode("append").options(**given).save()
    except KeyboardInterrupt:
        context.cancelJobsWithTag(tag)
        raise
    finally:
        context.removeJobTag(tag)


@contextmanager
def _watching(notes: Path, count: int) -> Generator[None]:
    """Show the progress from a thread of its own, because Spark blocks the calling thread."""
    is_over, began = threading.Event(), time.monotonic()

    def show(progress: Progress) -> None:
        while not is_over.wait(progress.every_seconds):
            counts = read_notes(notes)
            progress.show(counts.total, counts.total, time.monotonic() - began, counts.describe())

    with open_progress(count) as progress:
        watcher = threading.Thread(target=show, args=(progress,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()
            shutil.rmtree(notes, ignore_errors=True)
