"""A load: starts the rows of one file, counts outcomes, and writes rejected rows to a file."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.encoding import Pack
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from starter.files.duplicates import DuplicateRule, FirstRows, NewestRows, find_repeated
from starter.files.rows import Row, RowSource
from starter.files.threaded_iterator import ThreadedIterator
from starter.local.disk import explain_write_error
from starter.starting.bulk import BulkStarter
from starter.starting.delivery import Delivery
from starter.starting.receipts import Receipt, StartOutcome

EXAMPLES = 3
"""Messages that a dry run shows."""

Inspect = Callable[[Row, Envelope], Awaitable[None]]
"""Looks at a valid row that counts, in place of a start."""


@dataclass(slots=True)
class InputScan:
    """One reading of the input from its beginning: how far it has come, since when, and what for."""

    position: int = 0
    """Position after the last row read: bytes, or rows of a Parquet file."""
    is_searching: bool = False
    """It is read for duplicates, before any row is started."""
    began_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class LoadCounts:
    """Running totals of one load."""

    rows: int = 0
    started: int = 0
    revised: int = 0
    """Messages that were alive and got what their row says."""
    already_running: int = 0
    rejected: int = 0
    failed: int = 0
    duplicates: int = 0
    """Rows that don't count, because another row names the same message."""
    valid: int = 0
    """Rows that a dry run found valid."""
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """Rows that are messages, by their kind and lane."""
    scan: InputScan = field(default_factory=InputScan)
    """How far the input has been read; `rows` are those of this reading."""
    began_at: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        """Rows whose outcome is known."""
        if self.scan.is_searching:
            return self.rows
        handled = self.started + self.revised + self.already_running
        return handled + self.rejected + self.failed + self.duplicates + self.valid

    @property
    def done_position(self) -> float:
        """Position of `done` in the input, estimated as if all rows had one length: receipts come in any order."""
        return self.scan.position * self.done / self.rows if self.rows else 0.0

    def begin(self, *, is_searching: bool = False) -> None:
        """Restart the count at the beginning of the input."""
        self.rows = 0
        self.scan = InputScan(is_searching=is_searching)

    def note(self, row: Row) -> None:
        """Count a row that was read."""
        self.rows += 1
        self.scan.position = row.end

    @property
    def seconds(self) -> float:
        """Time since the load began."""
        return time.monotonic() - self.began_at

    @property
    def is_clean(self) -> bool:
        """Nothing was rejected and nothing failed."""
        return self.rejected == 0 and self.failed == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The rules for rows, which of them count and change messages, and the file for rejected ones."""

    rules: EnvelopeRules
    rejects: Path
    packs: Mapping[str, Pack] = field(default_factory=dict[str, Pack])
    """Kinds whose handlers declare that their messages are packed."""
    duplicates: DuplicateRule | None = None
    """Which of several rows with one kind and id counts; None: the newest where the source can be read twice."""
    upserts: bool = False
    """Each row also changes its message if that is alive, once for its idempotency key, else for its place in the file
    as it is now."""
    failures_max: int = 64
    """After this number of failed starts in a row the load stops reading: the server is gone."""


class Load:
    """Starts every row of a source, each at most once, also when the load is run again.

    Memory holds a few hundred rows and what finds duplicates: 8 bytes a row and about 300 a message that has several,
    or 100 bytes a row if the first row counts. `summary` may be read at any time.
    """

    def __init__(self, source: RowSource, options: LoadOptions) -> None:
        self.summary = LoadCounts()
        self.flaw: GiveUp | None = None
        """Why the source could not be read to its end; the rows before that were started."""
        self.is_stopped = False
        self.examples: list[Envelope] = []
        """The first messages of a dry run, as they would be."""
        self._source = source
        self.options = options
        self._feed = ThreadedIterator(source)
        self._rejects = RejectFile(options.rejects, source.number_name)
        self._failures = 0
        self.rule: DuplicateRule = options.duplicates or ("newest" if source.is_repeatable else "first")
        self._duplicates: FirstRows | NewestRows = FirstRows()

    def stop(self) -> None:
        """Stop reading; starts under way are finished."""
        self.is_stopped = True
        self._feed.stop()

    async def run(self, starter: BulkStarter | None, inspect: Inspect | None = None) -> None:
        """Start all rows, or without a starter only check and inspect them; then put the file of rejects in its place.

        Raises GiveUp or DiskFull when the rejects can't be written, Misconfigured when the server refuses this client.
        """
        is_complete = False
        try:
            if self.rule == "newest":
                self._duplicates = await asyncio.to_thread(self._find_newest)

            self.summary.begin()
            if starter is None:
                async for row, envelope in self._envelopes():
                    if inspect is not None:
                        await inspect(row, envelope)
                    elif len(self.examples) < EXAMPLES:
                        self.examples.append(envelope)
                    self.summary.valid += 1
            else:
                async for receipt in starter.start_all(self._requests()):
                    self._take(receipt)

            is_complete = not self.is_stopped and self.flaw is None
        finally:
            self._feed.stop()
            self._rejects.close(is_complete=is_complete)

    def _find_newest(self) -> NewestRows:
        newest = NewestRows()
        repeated = find_repeated(self._hash(row) for row in self._read_again())
        for row in self._read_again() if repeated else ():
            if self._hash(row) in repeated:
                with suppress(InvalidEnvelope):
                    newest.add(row.number, self._check(row))
        return newest

    def _read_again(self) -> Iterator[Row]:
        self.summary.begin(is_searching=True)
        with suppress(GiveUp), self._source.reopen() as source:  # reported when rows are started
            for row in source:
                if self.is_stopped:
                    return
                self.summary.note(row)
                yield row

    def _hash(self, row: Row) -> int:
        """Give the same number for all rows that may name one message."""
        if isinstance(row.fields, bytes):
            return row.number
        return hash((row.fields.get("kind"), str(row.fields.get("id"))))

    async def _requests(self) -> AsyncIterator[tuple[Row, Envelope | Delivery]]:
        session = self._source.fingerprint
        async for row, envelope in self._envelopes():
            is_upsert = self.options.upserts
            yield row, Delivery.of_upsert(envelope, f"{session}:{row.number}") if is_upsert else envelope

    async def _envelopes(self) -> AsyncIterator[tuple[Row, Envelope]]:
        async for row in self._rows():
            try:
                envelope = self._check(row)
            except InvalidEnvelope as exc:
                self._reject(row, exc.field, exc.problem)
            else:
                if self._duplicates.is_duplicate(row.number, envelope):
                    self.summary.duplicates += 1
                else:
                    self.summary.kinds[envelope.kind, envelope.lane or ""] += 1
                    yield row, envelope

    async def _rows(self) -> AsyncIterator[Row]:
        try:
            async for row in self._feed:
                self.summary.note(row)
                yield row
        except GiveUp as exc:
            self.flaw = exc
        if not self.summary.rows and not self.is_stopped:
            self.flaw = self.flaw or GiveUp(f"{self._source.name}: holds no rows; there is nothing to start")

    def _check(self, row: Row) -> Envelope:
        if row.flaw is not None:
            raise row.flaw
        return parse_envelope(row.fields, self.options.rules)

    def _take(self, receipt: Receipt[Row]) -> None:
        if receipt.outcome is StartOutcome.REJECTED:
            self._reject(receipt.tag, receipt.field or "envelope", receipt.reason)
            return

        if receipt.outcome is StartOutcome.STARTED:
            self.summary.started += 1
        elif receipt.outcome is StartOutcome.REVISED:
            self.summary.revised += 1
        elif receipt.outcome in (StartOutcome.ALREADY_RUNNING, StartOutcome.IGNORED):
            self.summary.already_running += 1
        else:
            self.summary.failed += 1

        self._failures = self._failures + 1 if receipt.outcome is StartOutcome.FAILED else 0
        if self._failures >= self.options.failures_max:
            self.stop()

    def _reject(self, row: Row, name: str, reason: str) -> None:
        self.summary.rejected += 1
        self._rejects.write(row, name, reason)


class RejectFile:
    """The file of rejected rows; it appears, complete, when the load ends, and only if there are any."""

    def __init__(self, path: Path, number_name: str, option: str = "--rejects") -> None:
        """Take the option of the command line that is to blame when the file can't be written."""
        self._path = path
        self._number_name = number_name
        self._option = option
        self._part = path.with_name(f"{path.name}.part")
        self._stream: BinaryIO | None = None

    def write(self, row: Row, name: str, reason: str) -> None:
        """Add one row; raises GiveUp or DiskFull when the file can't be written."""
        entry = {self._number_name: row.number, "field": name, "reason": reason, "row": row.original}
        # a lone surrogate is written as a JSON escape, as it may have been in the input
        line = (_dump(entry) + "\n").encode(errors="backslashreplace")
        try:
            if self._stream is None:
                self._stream = self._part.open("wb")
            self._stream.write(line)
        except OSError as exc:
            raise explain_write_error(self._option, self._path, exc) from exc

    def close(self, *, is_complete: bool) -> None:
        """Put the file in its place; without rejects, a complete load removes the file of an earlier load."""
        try:
            if self._stream is not None:
                self._stream.close()
                self._part.replace(self._path)
            elif is_complete:
                self._path.unlink(missing_ok=True)
        except OSError as exc:
            self._part.unlink(missing_ok=True)
            raise explain_write_error(self._option, self._path, exc) from exc


def _dump(entry: dict[str, Any]) -> str:
    try:
        return json.dumps(entry, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # a table may hold NaN, which JSON does not know
        return json.dumps({**entry, "row": str(entry["row"])}, ensure_ascii=False)
