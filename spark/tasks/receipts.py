"""Receipts: the outcome of every row, written by the tasks as Parquet; each task writes a complete file or none."""

import importlib
import json
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from operator import add, sub
from pathlib import Path
from typing import Any

from spark.tables import RECEIPTS_DDL, to_batch, to_schema
from starter.starting.receipts import Receipt, StartOutcome

# pyarrow has no type stubs
_fs: Any = importlib.import_module("pyarrow.fs")
_parquet: Any = importlib.import_module("pyarrow.parquet")

SCHEMA: Any = to_schema(RECEIPTS_DDL)
ROWS_AT_ONCE = 10_000
NOTE_EVERY_SECONDS = 1.0


@dataclass(slots=True)
class StartCounts:
    """How many rows had which outcome."""

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

    def __add__(self, other: "StartCounts") -> "StartCounts":
        """Give the sum."""
        return StartCounts(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "StartCounts") -> "StartCounts":
        """Give the difference."""
        return StartCounts(*map(sub, astuple(self), astuple(other)))

    def describe(self) -> str:
        """Give the counts as text for a person."""
        return f"{self.started:,} started, {self.already_running:,} already running, {self.rejected:,} rejected"


class ReceiptFile:
    """The receipts of one task; memory holds ROWS_AT_ONCE of them."""

    def __init__(self, writer: Any) -> None:
        self.counts = StartCounts()
        self._writer = writer
        self._rows: list[tuple[Any, ...]] = []

    def add(self, receipt: Receipt[tuple[str, str]]) -> None:
        """Add the receipt of one row, whose tag is its kind and id."""
        name, outcome, now = receipt.workflow_id, receipt.outcome.value, datetime.now(UTC)
        self._rows.append((name, *receipt.tag, receipt.run_id, outcome, receipt.reason, receipt.attempts, now))
        self.counts.add(receipt.outcome)
        if len(self._rows) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what memory holds."""
        self._writer.write_batch(to_batch(self._rows, SCHEMA))
        self._rows = []


@contextmanager
def open_receipts(folder: str, name: str, attempt: int) -> Generator[ReceiptFile]:
    """Open a task's receipts for a `with` block; the file gets its visible name at the end, or none if it raises.

    A repeated attempt replaces the file of the attempt before, so a row never has two receipts of one run.
    """
    fs, root = _fs.FileSystem.from_uri(folder)
    fs.create_dir(root, recursive=True)
    part = f"{root}/_{name}.{attempt}.part"  # Spark ignores files whose names begin with "_"
    try:
        with fs.open_output_stream(part) as stream, _parquet.ParquetWriter(stream, SCHEMA) as writer:
            file = ReceiptFile(writer)
            yield file
            file.flush()
        fs.move(part, f"{root}/{name}.parquet")
    except BaseException:
        with suppress(OSError):
            fs.delete_file(part)
        raise


class ProgressNote:
    """A file in which a task writes, once a second, how many of its rows have an outcome."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder, f"{name}.json")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._noted_at = 0.0

    def write(self, counts: StartCounts, *, is_last: bool = False) -> None:
        """Write the counts, unless the last write was less than NOTE_EVERY_SECONDS ago."""
        now = time.monotonic()
        if is_last or now - self._noted_at >= NOTE_EVERY_SECONDS:
            self._noted_at = now
            part = self._path.with_suffix(".part")
            part.write_text(json.dumps(asdict(counts)), "utf-8")
            part.replace(self._path)


def read_notes(folder: Path) -> StartCounts:
    """Add up the notes of a save's tasks."""
    return sum((StartCounts(**json.loads(path.read_text("utf-8"))) for path in folder.glob("*.json")), StartCounts())
