"""Receipts: the outcome of every row, written by the tasks as Parquet; each task writes a complete file or none."""

import importlib
import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from operator import add, sub
from pathlib import Path
from typing import Any

from shared.messages.placement import identity_of, workflow_id
from spark.tables import RECEIPTS_DDL, to_batch_of, to_schema
from starter.starting.receipts import ChunkReceipts, Receipt, StartOutcome

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
        return sum(astuple(self))

    def add(self, outcome: StartOutcome, count: int = 1) -> None:
        """Add rows of one outcome; a start that failed has none. What an upsert met alive counts as already running."""
        is_met = outcome in (StartOutcome.REVISED, StartOutcome.IGNORED)
        name = (StartOutcome.ALREADY_RUNNING if is_met else outcome).name.lower()
        setattr(self, name, getattr(self, name) + count)

    def __add__(self, other: "StartCounts") -> "StartCounts":
        return StartCounts(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "StartCounts") -> "StartCounts":
        return StartCounts(*map(sub, astuple(self), astuple(other)))

    def describe(self) -> str:
        """Give the counts as text for a person."""
        return f"{self.started:,} started, {self.already_running:,} already running, {self.rejected:,} rejected"


class ReceiptFile:
    """The receipts of one task, of which memory holds ROWS_AT_ONCE; their counts go into the file `note`."""

    def __init__(self, writer: Any, note: Path | None) -> None:
        self._writer = writer
        self._columns: list[list[Any]] = [[] for _ in SCHEMA]
        self._counts = StartCounts()
        self._note = note
        self._noted_at = 0.0

    def add(self, receipts: Sequence[Receipt[str]] | ChunkReceipts[str]) -> list[str]:
        """Add the receipts of one call, whose tags are ids; gives why starts failed, for which there is no receipt."""
        failures: list[str] = []
        if isinstance(receipts, ChunkReceipts) and not receipts.others:
            self._add_started(receipts)
        else:
            for receipt in receipts:
                if receipt.outcome is StartOutcome.FAILED:
                    failures.append(receipt.reason)
                else:
                    self._add_one(receipt)

        if len(self._columns[0]) >= ROWS_AT_ONCE:
            self.flush()
        if time.monotonic() - self._noted_at >= NOTE_EVERY_SECONDS:
            self.write_note()
        return failures

    def _add_started(self, receipts: ChunkReceipts[str]) -> None:
        count = len(receipts)
        kind = receipts.kind
        same = (receipts.run_id, StartOutcome.STARTED.value, "", receipts.attempts, datetime.now(UTC))
        names = [workflow_id(kind, message_id) for message_id in receipts.ids]
        columns = (names, [kind] * count, receipts.ids, *([value] * count for value in same))
        for column, values in zip(self._columns, columns, strict=True):
            column.extend(values)
        self._counts.add(StartOutcome.STARTED, count)

    def _add_one(self, receipt: Receipt[str]) -> None:
        kind, message_id = identity_of(receipt.workflow_id)
        outcome = (receipt.outcome.value, receipt.reason, receipt.attempts, datetime.now(UTC))
        row = (receipt.workflow_id, kind, message_id, receipt.run_id, *outcome)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self._counts.add(receipt.outcome)

    def flush(self) -> None:
        """Write what memory holds."""
        self._writer.write_batch(to_batch_of(self._columns, SCHEMA))
        self._columns = [[] for _ in SCHEMA]

    def write_note(self) -> None:
        """Write how many rows have which outcome by now, for the progress of the start."""
        self._noted_at = time.monotonic()
        if self._note is not None:
            part = self._note.with_suffix(".part")
            part.write_text(json.dumps(asdict(self._counts)), "utf-8")
            part.replace(self._note)


@contextmanager
def open_receipts(folder: str, name: str, attempt: int, progress: str) -> Generator[ReceiptFile]:
    """Open a task's receipts for a `with` block; the file gets its visible name at the end, or none if it raises.

    A repeated attempt replaces the file of the one before: a row never has two receipts of one run.
    """
    fs, root = _fs.FileSystem.from_uri(folder)
    fs.create_dir(root, recursive=True)
    part = f"{root}/_{name}.{attempt}.part"  # Spark ignores files whose names begin with "_"

    note = Path(progress, f"{name}.json") if progress else None
    if note is not None:
        note.parent.mkdir(parents=True, exist_ok=True)

    try:
        with fs.open_output_stream(part) as stream, _parquet.ParquetWriter(stream, SCHEMA) as writer:
            file = ReceiptFile(writer, note)
            yield file
            file.flush()
        fs.move(part, f"{root}/{name}.parquet")
        file.write_note()
    except BaseException:
        # a task that is killed, too: no part stays; Spark tries the task again, which sends its rows once more
        with suppress(OSError):
            fs.delete_file(part)
        raise


def read_notes(folder: Path) -> StartCounts:
    """Add up the notes of a save's tasks."""
    return sum((StartCounts(**json.loads(path.read_text("utf-8"))) for path in folder.glob("*.json")), StartCounts())
