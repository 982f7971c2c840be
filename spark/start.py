"""The job behind `dormice spark start`: starts the messages of a manifest that have no receipt yet."""

import math
import threading
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shared.messages.placement import Layout
from shared.settings import Settings
from spark.format.data_source import FORMAT, register_temporal
from spark.prepare.manifest import Manifest
from spark.session.faults import told_of_spark
from spark.tasks.options import read_write_options, write_connection_options, write_settings_options
from spark.tasks.partitioning import settle_layouts, share_out
from spark.tasks.receipts import StartCounts, read_notes, remove_notes
from starter.files.progress import Progress, open_progress
from starter.starting.receipts import StartOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_TASK = 50_000
"""Rows of one task: a lost task is repeated as a whole, so its starts should take a few minutes only."""

_REJECTED = f"outcome = '{StartOutcome.REJECTED.value}'"
_NAME = ["kind", "id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The options of a start."""

    tasks: int | None = None
    """Tasks that share the rows; if None, one per core, or one per ROWS_PER_TASK rows if that is more."""
    retries_rejected: bool = False
    """Whether rows that were rejected before are tried again."""
    restarts_finished: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSummary:
    """The result of a start; its counts come from the receipts."""

    manifest: str
    """Id of the manifest."""
    messages: int
    now: StartCounts
    """What this start added."""
    in_all: StartCounts
    """All receipts of the manifest."""
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
    Ctrl-C ends the start; the receipts of finished tasks stay.
    """
    with told_of_spark():
        return _Start(session, manifest, settings, environ, options or StartOptions()).run()


class _Start:
    def __init__(
        self,
        session: "SparkSession",
        manifest: Manifest,
        settings: Settings,
        environ: Mapping[str, str],
        options: StartOptions,
    ) -> None:
        self._session = session
        self._manifest = manifest
        self._options = options
        self._run = uuid.uuid4().hex
        receipts = manifest.folder / "receipts"
        self._notes = str(receipts / f"_progress-{self._run}")
        self._given = {
            **write_connection_options(environ),
            **write_settings_options(settings),
            "receipts": str(receipts),
            "progress": self._notes,
            "session": manifest.id,
            "run": self._run,
            "restartFinished": str(options.restarts_finished),
        }

    def run(self) -> StartSummary:
        began = time.monotonic()
        messages = self._manifest.read_messages(self._session)
        layouts = self._settle(messages)
        before = self._count_receipts()
        settled = before.total - (before.rejected if self._options.retries_rejected else 0)
        if (left := self._manifest.messages - settled) > 0:
            self._save(messages.join(self._settled(), _NAME, "left_anti"), layouts, left)
        after = self._count_receipts()
        return StartSummary(
            manifest=self._manifest.id,
            messages=self._manifest.messages,
            now=after.minus(before),
            in_all=after,
            seconds=time.monotonic() - began,
        )

    def _settle(self, messages: "DataFrame") -> dict[str, Layout]:
        """Check the server and fix the layouts first, so that what would fail every row fails before any row starts."""
        checked = read_write_options({**self._given, "tasksAtOnce": "1"})
        kinds = sorted(row[0] for row in messages.select("kind").distinct().collect())
        return settle_layouts(checked.connection, checked.settings, kinds)

    def _settled(self) -> "DataFrame":
        """Give kind and id of the messages that need no start."""
        receipts = self._manifest.read_receipts(self._session)
        wanted = receipts.filter(f"NOT {_REJECTED}") if self._options.retries_rejected else receipts
        return wanted.select(*_NAME)

    def _count_receipts(self) -> StartCounts:
        """Count messages by the outcome of their start; one that succeeded after a rejection is not rejected."""
        receipts = self._manifest.read_receipts(self._session)
        counts = StartCounts()
        for row in receipts.groupBy("outcome").count().collect():
            counts.add(StartOutcome(row[0]), row[1])
        if counts.rejected:
            rejected = receipts.filter(_REJECTED).select(*_NAME).distinct()
            others = receipts.filter(f"NOT {_REJECTED}")
            counts.rejected = rejected.count() - others.join(rejected.hint("broadcast"), _NAME, "left_semi").count()
        return counts

    def _save(self, unsettled: "DataFrame", layouts: Mapping[str, Layout], count: int) -> None:
        context = self._session.sparkContext
        cores = context.defaultParallelism
        tasks = self._options.tasks or max(cores, math.ceil(count / ROWS_PER_TASK))
        register_temporal(self._session)
        writing = share_out(unsettled, layouts, tasks).write.format(FORMAT).mode("append")
        writing = writing.options(**self._given, tasksAtOnce=str(min(tasks, cores)))

        context.addJobTag(self._run)
        try:
            with self._watching(count):
                writing.save()
        except KeyboardInterrupt:
            context.cancelJobsWithTag(self._run)
            raise
        finally:
            context.removeJobTag(self._run)
            remove_notes(self._notes)

    @contextmanager
    def _watching(self, count: int) -> Generator[None]:
        """Show the progress from a thread of its own, because Spark blocks the calling thread."""
        is_over, began = threading.Event(), time.monotonic()

        def show(progress: Progress) -> None:
            while not is_over.wait(progress.every_seconds):
                counts = read_notes(self._notes)
                progress.show(counts.total, counts.total, time.monotonic() - began, counts.describe())

        with open_progress(count) as progress:
            watcher = threading.Thread(target=show, args=(progress,), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                is_over.set()
                watcher.join()
