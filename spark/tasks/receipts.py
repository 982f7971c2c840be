"""Receipts: the outcome of every row, written by the tasks as Parquet; each task writes a complete file or none."""

import importlib
import json
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from typing import Any

from starter.starting.receipts import StartOutcome

# pyarrow has no type stubs
_arrow: Any = importlib.import_module("pyarrow")
_fs: Any = importlib.import_module("pyarrow.fs")
_parquet: Any = importlib.import_module("pyarrow.parquet")

SCHEMA: Any = _arrow.schema(
    [
        ("workflow_id", _arrow.string()),
        ("kind", _arrow.string()),
        ("id", _arrow.string()),
        ("run_id", _arrow.string()),
        ("outcome", _arrow.string()),
        ("reason", _arrow.string()),
        ("attempts", _arrow.int64()),
        ("started_at", _arrow.timestamp("us", tz="UTC")),
    ]
)
ROWS_AT_ONCE = 10_000
NOTE_EVERY_SECONDS = 1.0
_HIDDEN = "_"  # Spark ignores files whose names begin with it


@dataclass(slots=True)
class StartCounts:
    """How many rows of a task had which outcome."""

    started: int = 0
    already_running: int = 0
    rejected: int = 0

    @property
    def total(self) -> int:
        """All rows that have an outcome."""
        return self.started + self.already_running + self.rejected

    def add(self, outcome: StartOutcome, count: int = 1) -> None:
        """Add rows of one outcome."""
        if outcome is StartOutcome.STARTED:
            self.started += count
        elif outcome is StartOutcome.REJECTED:
            self.rejected += count
        else:
            self.already_running += count

    def plus(self, other: "StartCounts") -> "StartCounts":
        """Give the sum with other counts."""
        return StartCounts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def minus(self, other: "StartCounts") -> "StartCounts":
        """Give the difference to other counts."""
        return StartCounts(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def describe(self) -> str:
        """Give the counts as text for a person."""
        return f"{self.started:,} started, {self.already_running:,} already running, {self.rejected:,} rejected"


class ReceiptFile:
    """The receipts of one task, in a file whose name is hidden until the task has processed all its rows.

    A repeated attempt replaces the file of the attempt before, so a row never has two receipts of one run.
    """

    def __init__(self, folder: str, name: str, attempt: int) -> None:
        self._fs, root = _fs.FileSystem.from_uri(folder)
        self._path = f"{root}/{name}.parquet"
        self._part = f"{root}/{_HIDDEN}{name}.{attempt}.part"
        self._fs.create_dir(root, recursive=True)
        self._stream = self._fs.open_output_stream(self._part)
        self._writer = _parquet.ParquetWriter(self._stream, SCHEMA)
        self._columns: list[list[Any]] = [[] for _ in SCHEMA]
        self.told = StartCounts()

    def add(
        self,
        workflow_id: str,
        kind: str,
        id: str,  # noqa: A002 — the envelope's own word
        outcome: StartOutcome,
        *,
        run_id: str = "",
        reason: str = "",
        attempts: int = 0,
    ) -> None:
        """Add the receipt of one row."""
        values = (workflow_id, kind, id, run_id, outcome.value, reason, attempts, datetime.now(UTC))
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        self.told.add(outcome)
        if len(self._columns[0]) >= ROWS_AT_ONCE:
            self._flush()

    def commit(self) -> None:
        """Finish the file and give it its visible name."""
        self._flush()
        self._writer.close()
        self._stream.close()
        self._fs.move(self._part, self._path)

    def discard(self) -> None:
        """Delete the unfinished file."""
        with suppress(OSError):
            self._writer.close()
            self._stream.close()
            self._fs.delete_file(self._part)

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [_arrow.array(column, field.type) for column, field in zip(self._columns, SCHEMA, strict=True)]
            self._writer.write_batch(_arrow.record_batch(arrays, schema=SCHEMA))
            self._columns = [[] for _ in SCHEMA]


@contextmanager
def open_receipts(folder: str, name: str, attempt: int) -> Generator[ReceiptFile]:
    """Open a task's receipts for a `with` block; they are committed at its end, or discarded if it raises."""
    file = ReceiptFile(folder, name, attempt)
    try:
        yield file
        file.commit()
    except BaseException:
        file.discard()
        raise


class ProgressNote:
    """A file in which a task writes, once a second, how many of its rows have an outcome."""

    def __init__(self, folder: str, name: str) -> None:
        self._fs, root = _fs.FileSystem.from_uri(folder)
        self._fs.create_dir(root, recursive=True)
        self._path = f"{root}/{name}.json"
        self._noted_at = 0.0

    def note(self, counts: StartCounts, *, is_last: bool = False) -> None:
        """Write the counts, unless the last write was less than NOTE_EVERY_SECONDS ago."""
        now = time.monotonic()
        if not is_last and now - self._noted_at < NOTE_EVERY_SECONDS:
            return
        self._noted_at = now
        with self._fs.open_output_stream(f"{self._path}.part") as stream:
            stream.write(json.dumps(asdict(counts)).encode())
        self._fs.move(f"{self._path}.part", self._path)


def read_notes(folder: str) -> StartCounts:
    """Add up the notes of a save's tasks; a note that is being replaced at this moment is skipped."""
    noted = StartCounts()
    fs, root = _fs.FileSystem.from_uri(folder)
    for info in fs.get_file_info(_fs.FileSelector(root, allow_not_found=True)):
        if not info.path.endswith(".json"):
            continue
        with suppress(OSError), fs.open_input_stream(info.path) as stream:
            noted = noted.plus(StartCounts(**json.loads(stream.read())))
    return noted


def remove_notes(folder: str) -> None:
    """Remove the folder of notes."""
    fs, root = _fs.FileSystem.from_uri(folder)
    with suppress(OSError):
        fs.delete_dir(root)
