"""Raw rows: turns the Arrow batches that a task gets from Spark into the same rows that the readers of files give."""

import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import orjson

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from shared.messages.json_value import parse_plain_objects
from shared.settings import Settings
from spark.source.parquet import ArrowTypes, restore_types
from spark.source.topic import read_ranges
from spark.tables import BATCH_ROWS
from starter.files.arrow import read_rows
from starter.files.columns import NUMBER_FIELDS
from starter.files.mapping import RowMapping, to_invalid_envelope
from starter.files.rows import (
    Line,
    Row,
    ToFields,
    is_open_record,
    make_row,
    map_row,
    read_csv_records,
    read_first_record,
    read_json_lines,
)
from starter.files.table_options import show_names
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.record import DeadRecord, Record

Starts = Mapping[tuple[str, int], int]  # rows before a file's block, by the file's path and the block's offset in it
ParsedRow = tuple[Row, Envelope | InvalidEnvelope]  # a row with its envelope, or with the reason why it is not one

PLAIN_MAX_BYTES = 16 * 1024  # of a line that is parsed together with others
PARTITION_STEP = 10**12  # between the row numbers of partitions: 3000000000042 is offset 42 of partition 3


class RawRows(NamedTuple):
    """Rows before the rules, as columns of equal length.

    `originals` are the bytes that stand for a row in its digest; `fields` is None where they were not easily read;
    `raws` is what the reader's `parse` needs to judge a row by the rules. `is_json`: orjson has parsed all payloads.
    """

    numbers: Sequence[int]
    originals: Sequence[bytes]
    fields: Sequence[Mapping[str, Any] | None]
    raws: Sequence[Any]
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class LineReader:
    """Lines of text files, from the columns file, block and value.

    CSV has `names` for its columns, and `header` for those in the first line of each file if that is a header.
    """

    starts: Starts
    mapping: RowMapping
    names: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    source: str = ""
    spans_lines: bool = False

    @property
    def has_json(self) -> bool:
        """Whether the lines are JSON."""
        return not self.names

    def read(self, batches: Iterable[Any]) -> Iterator[RawRows]:
        """Give a row for each line, or for each record of a file where cells may span lines."""
        return self._read_json(batches) if self.has_json else _to_raw_rows(self._read_csv(batches))

    def parse(self, number: int, raw: Any, rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Judge a row by the rules; gives nothing for a blank line."""
        if not self.has_json:
            yield raw, _parse(raw, rules)
            return
        for row in read_json_lines((Line.of(number, raw + b"\n", number),)):
            mapped = map_row(row, self.mapping)
            yield mapped, _parse(mapped, rules)

    def _read_json(self, batches: Iterable[Any]) -> Iterator[RawRows]:
        for _, first, values in self._runs(batches):
            # long lines are left to the rules, so that a batch takes little memory
            texts = [value if len(value) <= PLAIN_MAX_BYTES else b"" for value in values]
            fields: list[Mapping[str, Any] | None] = list(parse_plain_objects(texts))
            if self.mapping != RowMapping():
                fields = [None if document is None else _map_plain(document, self.mapping) for document in fields]
            originals = [value.rstrip(b"\r") for value in values]
            yield RawRows(range(first, first + len(values)), originals, fields, values, is_json=True)

    def _read_csv(self, batches: Iterable[Any]) -> Iterator[Row]:
        to_fields = self.mapping.reader(self.names, self.source, is_text=True).to_fields
        for _, pairs in itertools.groupby(self._lines(batches), key=lambda pair: pair[0]):
            lines = (line for _, line in pairs)
            for record in (lines,) if self.spans_lines else ((line,) for line in lines):
                yield from read_csv_records(record, to_fields)

    def _lines(self, batches: Iterable[Any]) -> Iterator[tuple[str, Line]]:
        for (file, block), first, values in self._runs(batches):
            for number, value in enumerate(values, first):
                if not self.header or block > 0 or number > self.starts[file, block] + 1:
                    if not self.spans_lines:
                        _check_record(file, number, value)
                    # a cell that spans lines keeps the line ends
                    yield file, Line.of(number, value + b"\n", number)
                else:
                    self._check_header(file, value)

    def _check_header(self, file: str, value: bytes) -> None:
        """Raise GiveUp for the header of a file whose columns have other names than those of the first file."""
        names = read_first_record(iter((Line.of(1, value, 0),)), [], file)
        if tuple(names) != self.header:
            what = f"has the columns {show_names(names)}, and the first file of {self.source} has"
            raise GiveUp(f"{file}: {what} {show_names(self.header)}; prepare it by itself")

    def _runs(self, batches: Iterable[Any]) -> Iterator[tuple[tuple[str, int], int, list[bytes]]]:
        """Give lines that follow one another in a block, with their file and block and the number of the first."""
        place = ("", -1)
        number = 0

        for batch in batches:
            files, blocks, values = batch.columns
            for begin, end in _find_runs(files, blocks):
                found = (files[begin].as_py(), blocks[begin].as_py())
                if found != place:
                    place = found
                    if place not in self.starts:
                        raise GiveUp(f"{place[0]}: has changed while it was read; try again")
                    number = self.starts[place] + 1
                for first in range(begin, end, BATCH_ROWS):
                    some = values[first : min(first + BATCH_ROWS, end)].to_pylist()
                    yield place, number, some
                    number += len(some)


@dataclass(frozen=True)  # without slots, for its cached property
class CellReader:
    """Rows of a table, from the columns file, row (counted from 0) and cells."""

    starts: Starts
    mapping: RowMapping
    names: tuple[str, ...]
    source: str
    types: ArrowTypes = field(default_factory=dict[str, Any])

    def read(self, batches: Iterable[Any]) -> Iterator[RawRows]:
        """Give each row of the table."""
        to_fields = self._to_fields
        # where columns are fields of the envelope by name, the payloads of many rows are parsed at once
        is_plain = self.mapping == RowMapping() and "payload" in self.names and not set(self.names) & set(NUMBER_FIELDS)

        for batch in batches:
            files, numbers, given = batch.columns
            cells = restore_types(given, self.types)

            for begin, end in _find_runs(files):
                start = self.starts.get((files[begin].as_py(), 0), 0) + 1
                for first in range(begin, end, BATCH_ROWS):
                    last = min(first + BATCH_ROWS, end)
                    rows = list(read_rows(cells[first:last]))
                    plain = list(_read_plain_cells(rows)) if is_plain else [None] * len(rows)
                    fields = [known or _read_fields(to_fields, row) for row, known in zip(rows, plain, strict=True)]
                    of_rows = [start + number for number in numbers[first:last].to_pylist()]
                    yield RawRows(of_rows, list(map(to_digest_bytes, rows)), fields, rows, is_json=None not in plain)

    def parse(self, number: int, raw: Mapping[str, Any], rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Judge a row by the rules."""
        row = make_row(self._to_fields, raw, number)
        yield row, _parse(row, rules)

    @cached_property
    def _to_fields(self) -> ToFields:
        return self.mapping.reader(self.names, self.source).to_fields


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Records of a Kafka topic, from a frame of offset ranges."""

    options: FormatOptions
    settings: Settings

    def read(self, batches: Iterable[Any]) -> Iterator[RawRows]:
        """Give each record, decoded only by `parse`."""
        records = read_ranges(self.settings, batches)
        while some := list(itertools.islice(records, BATCH_ROWS)):
            numbers = [record.partition * PARTITION_STEP + record.offset for record in some]
            yield RawRows(numbers, [b""] * len(some), [None] * len(some), some)

    def parse(self, number: int, raw: Record, rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Decode a record as the bridge decodes it."""
        yield Row(number, {}, _show(raw), number), _decode(raw, Formats(self.options, rules))


RowReader = LineReader | CellReader | RecordReader
"""Reads the rows of one task; made on the driver and sent to the executors."""


def _decode(record: Record, formats: Formats) -> Envelope | InvalidEnvelope:
    try:
        envelope = formats.decode(record).envelope
    except DeadRecord as exc:
        return to_invalid_envelope(exc)
    return envelope or InvalidEnvelope(
        "value", "is null, which stops a message, and here messages are only started; see 'dormice bridge'"
    )


def _parse(row: Row, rules: EnvelopeRules) -> Envelope | InvalidEnvelope:
    try:
        return row.flaw or parse_envelope(row.fields, rules)
    except InvalidEnvelope as exc:
        return exc


def _check_record(file: str, number: int, line: bytes) -> None:
    """Raise GiveUp for a line that is only the beginning of a record.

    A task may begin with any line of a file. That is a record of its own if no line before it is such a beginning. As a
    single one ends all tasks, no message is ever made of the rest of a cell.
    """
    if is_open_record(line):
        why = f"a quoted cell of row {number} does not end on its line"
        raise GiveUp(f"{file}: {why}; add --multi-line if cells span lines, else correct its quotes")


def _find_runs(*columns: Any) -> Iterator[tuple[int, int]]:
    """Find where all columns keep their values: from which row up to but not including which."""
    compute: Any = importlib.import_module("pyarrow.compute")
    changes = {0, len(columns[0])}
    for column in columns:
        is_new = compute.not_equal(column[1:], column[:-1])
        changes.update(place + 1 for place in compute.indices_nonzero(is_new).to_pylist())
    yield from itertools.pairwise(sorted(changes))


def _to_raw_rows(rows: Iterator[Row]) -> Iterator[RawRows]:
    while some := list(itertools.islice(rows, BATCH_ROWS)):
        fields = [None if row.flaw or isinstance(row.fields, bytes) else row.fields for row in some]
        yield RawRows([row.number for row in some], [to_digest_bytes(row.original) for row in some], fields, some)


def _read_plain_cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any] | None]:
    """Give the envelope fields of rows whose payload is a plain JSON object as text, as `Columns` does; else None."""
    texts = [text.encode() if isinstance(text := row["payload"], str) else b"" for row in rows]
    for row, payload in zip(rows, parse_plain_objects(texts), strict=True):
        if payload is None:
            yield None
            continue
        fields = {name: cell for name, cell in row.items() if cell is not None and cell != ""}
        fields["payload"] = payload
        yield fields


def _read_fields(to_fields: ToFields, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    try:
        return to_fields(tuple(row.values()))
    except InvalidEnvelope:
        return None


def to_digest_bytes(original: Any) -> bytes:
    """Give what stands for a row in its digest."""
    if not isinstance(original, str):
        try:
            return orjson.dumps(original, default=repr)
        except TypeError:  # whole numbers of more than 64 bits, among others
            original = repr(original)
    return original.encode(errors="surrogatepass")


def _map_plain(document: Any, mapping: RowMapping) -> Mapping[str, Any] | None:
    try:
        return mapping.to_fields(document)
    except InvalidEnvelope:
        return None


def _show(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    shown |= {"key": _to_text(record.key), "value": _to_text(record.value)}
    return {**shown, "headers": {name: _to_text(raw) for name, raw in record.headers}}


def _to_text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")
