"""The job behind `dormice spark start`: starts the messages of a manifest that have no receipt yet."""

import asyncio
import importlib
import math
import shutil
import threading
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activities.registry import declared_packs, envelope_rules, load_registry
from shared.settings import Settings
from spark.prepare.manifest import MESSAGES_DDL, Manifest
from spark.session.faults import translate_spark_errors
from spark.tables import columns_of, count_values
from spark.tasks.chunks import PLACE
from spark.tasks.options import read_write_options, write_connection_options, write_settings_options
from spark.tasks.placement import Placement
from spark.tasks.receipts import StartCounts, read_notes
from spark.tasks.starting import ROW, ManifestTask, TaskSpec, connect_checked
from starter.files.progress import Progress, open_progress
from starter.starting.layouts import Layouts
from starter.starting.receipts import StartOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TASK = 50_000  # a lost task is repeated as a whole, so its starts should take a few minutes only

_REJECTED = f"outcome = '{StartOutcome.REJECTED.value}'"
_NAME = ["kind", "id"]


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
    began = time.monotonic()
    run = uuid.uuid4().hex
    folder = manifest.folder / "receipts"
    notes = folder / f"_progress-{run}"
    before = _count_receipts(session, manifest)
    settled = before.total - (before.rejected if options.retries_rejected else 0)
    left = manifest.messages - settled
    cores = session.sparkContext.defaultParallelism
    tasks = options.tasks or max(cores, math.ceil(left / ROWS_PER_TASK))
    given = {
        **given,
        "receipts": str(folder),
        "progress": str(notes),
        "session": manifest.id,
        "run": run,
        "tasksAtOnce": str(max(1, min(tasks, cores))),
        "restartFinished": str(options.restarts_finished),
    }
    spec = asyncio.run(_make_spec(given, manifest.count_kinds()))

    if left > 0:
        unsettled = manifest.read_messages(session)
        if before.total:
            receipts = manifest.read_receipts(session)
            done = receipts.filter(f"NOT {_REJECTED}") if options.retries_rejected else receipts
            unsettled = unsettled.join(done.select(*_NAME), _NAME, "left_anti")
        with _watching(notes, left):
            _run_tasks(_share_out(unsettled, Placement(spec.places or {}), tasks), spec)

    after = _count_receipts(session, manifest) if left > 0 else before
    return StartSummary(
        manifest=manifest.id,
        messages=manifest.messages,
        now=after - before,
        in_all=after,
        seconds=time.monotonic() - began,
    )


async def _make_spec(given: Mapping[str, str], counts: Mapping[str, int]) -> TaskSpec:
    """Check the server and fix the layouts first, so that what would fail every row fails before any row starts."""
    options = read_write_options(given)
    registry = load_registry(options.settings)
    client = await connect_checked(options.connection, options.settings)
    packs = declared_packs(registry)
    layouts = Layouts(client, options.settings, packs)
    places: dict[str, int] = {}
    for kind, count in counts.items():
        if kind in registry:
            layout = await layouts.ensure(kind, registry[kind].lane, count)
            places[kind] = layout.packs if layout is not None else 0

    rules = envelope_rules(options.settings, registry)
    names = tuple(name for name in columns_of(MESSAGES_DDL) if name != ROW)

    return TaskSpec(options=options, names=names, rules=rules, packs=packs, places=places)


def _count_receipts(session: "SparkSession", manifest: Manifest) -> StartCounts:
    """Count messages by the outcome of their start; one that succeeded after a rejection is not rejected."""
    counts = StartCounts()
    for outcome, count in count_values(manifest.folder / "receipts", "outcome").items():
        counts.add(StartOutcome(outcome), count)
    if counts.rejected:
        receipts = manifest.read_receipts(session)
        rejected = receipts.filter(_REJECTED).select(*_NAME).distinct()
        others = receipts.filter(f"NOT {_REJECTED}")
        counts.rejected = rejected.count() - others.join(rejected.hint("broadcast"), _NAME, "left_semi").count()

    return counts


def _share_out(frame: "DataFrame", places: Placement, tasks: int) -> "DataFrame":
    """Choose the partitioning: one task owns all rows of a pack, side by side and in the same order at each attempt."""

    def find_places(kinds: Any, ids: Any) -> Any:
        return places.find(kinds, ids)

    find: Any = find_places
    # Spark passes whole arrays where the hints say so, but pyarrow has no types to write them with
    find.__annotations__ = dict.fromkeys(("kinds", "ids", "return"), importlib.import_module("pyarrow").Array)
    functions: Any = importlib.import_module("pyspark.sql.functions")
    placed = frame.withColumn(PLACE, functions.arrow_udf(find, "long")(*_NAME))
    return placed.repartition(tasks, PLACE).sortWithinPartitions(PLACE, "id")


def _run_tasks(frame: "DataFrame", spec: TaskSpec) -> None:
    context = frame.sparkSession.sparkContext
    tag = spec.options.run
    context.addJobTag(tag)

    try:
        # not through the format `temporal`: for a save, Spark starts several Python processes to plan it
        frame.mapInArrow(ManifestTask(spec).run, "done boolean").collect()  # pyright: ignore[reportUnknownMemberType] — pyarrow has no types
    except KeyboardInterrupt:
        context.cancelJobsWithTag(tag)
        raise
    finally:
        context.removeJobTag(tag)


@contextmanager
def _watching(notes: Path, count: int) -> Generator[None]:
    """Show the progress from a thread of its own, because Spark blocks the calling thread."""
    is_over = threading.Event()
    began = time.monotonic()

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
