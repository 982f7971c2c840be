"""Raw rows: turns the Arrow batches that a task gets from Spark into the same rows that the readers of files give."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import GiveUp, InvalidEnvelope
from shared.messages.envelope import Envelope, EnvelopeRules, parse_envelope
from shared.settings import Settings
from spark.source.mapping import RowMapping, to_invalid_envelope
from spark.source.topic import read_ranges
from spark.tables import rows_of
from starter.files.rows import Line, Row, make_row, read_csv_records, read_json_lines
from starter.records.formats import Formats
from starter.records.mapping import FormatOptions
from starter.records.record import DeadRecord, Record

Starts = Mapping[tuple[str, int], int]  # rows before a file's block, by the file's path and the block's offset in it
ParsedRow = tuple[Row, Envelope | InvalidEnvelope]  # a row with its envelope, or with the reason why it is not one

PARTITION_STEP = 10**12  # between the row numbers of partitions: 3000000000042 is offset 42 of partition 3


@dataclass(frozen=True, slots=True)
class LineReader:
    """Lines of text files, from the columns file, block and value; `header` is the header line of CSV files."""

    starts: Starts
    mapping: RowMapping
    header: bytes | None = None
    names: tuple[str, ...] = ()
    source: str = ""
    spans_lines: bool = False

    def read(self, batches: Iterable[Any], rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Give a row for each line, or for each record of a file where cells may span lines."""
        for _, lines in itertools.groupby(self._lines(batches), key=lambda pair: pair[0]):
            for row in self._rows(line for _, line in lines):
                yield row, _parse(row, rules)

    def _lines(self, batches: Iterable[Any]) -> Iterator[tuple[str, Line]]:
        place, count = ("", -1), 0
        for file, block, value in rows_of(batches):
            if (file, block) != place:
                place = (file, block)
                if place not in self.starts:
                    raise GiveUp(f"{file}: has changed while it was read; try again")
                count = self.starts[place]
            count += 1
            if self.header is None or block > 0 or count > self.starts[place] + 1:
                yield file, Line.of(count, value + b"\n", count)  # a cell that spans lines keeps the line ends
            elif value.rstrip(b"\r") != self.header:
                raise GiveUp(f"{file}: has other columns than the first file of {self.source}; prepare it by itself")

    def _rows(self, lines: Iterator[Line]) -> Iterator[Row]:
        if self.header is None:
            for row in read_json_lines(lines):
                yield _map_document(row, self.mapping)
            return
        to_fields = self.mapping.reader(self.names, self.source, is_text=True).to_fields
        for record in (lines,) if self.spans_lines else ((line,) for line in lines):
            yield from read_csv_records(record, to_fields)


@dataclass(frozen=True, slots=True)
class CellReader:
    """Rows of a table, from the columns file, row (counted from 0) and cells."""

    starts: Starts
    mapping: RowMapping
    names: tuple[str, ...]
    source: str

    def read(self, batches: Iterable[Any], rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Give each row of the table."""
        to_fields = self.mapping.reader(self.names, self.source).to_fields
        for file, number, cells in rows_of(batches):
            row = make_row(to_fields, cells, self.starts.get((file, 0), 0) + number + 1)
            yield row, _parse(row, rules)


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Records of a Kafka topic, from a frame of offset ranges."""

    options: FormatOptions
    settings: Settings

    def read(self, batches: Iterable[Any], rules: EnvelopeRules) -> Iterator[ParsedRow]:
        """Give each record, decoded as the bridge decodes it."""
        formats = Formats(self.options, rules)
        for record in read_ranges(self.settings, batches):
            number = record.partition * PARTITION_STEP + record.offset
            yield Row(number, {}, _show(record), number), _decode(record, formats)


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


def _map_document(row: Row, mapping: RowMapping) -> Row:
    if row.flaw is not None or isinstance(row.fields, bytes):
        return row
    try:
        return Row(row.number, mapping.to_fields(row.fields), row.original, row.end)
    except InvalidEnvelope as flaw:
        return Row(row.number, {}, row.original, row.end, flaw)


def _show(record: Record) -> dict[str, Any]:
    shown: dict[str, Any] = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    shown |= {"key": _to_text(record.key), "value": _to_text(record.value)}
    return {**shown, "headers": {name: _to_text(raw) for name, raw in record.headers}}


def _to_text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")
