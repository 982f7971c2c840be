"""Readers: turn a file of JSON, CSV or Parquet into rows that may become envelopes, one at a time."""

import csv
import gzip
import re
import sys
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

from shared.errors import GiveUp, InvalidEnvelope, check_extra
from shared.messages.json_value import parse_json
from starter.files.mapping import RowMapping
from starter.files.table_options import TableOptions

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
SUFFIXES_OF_COMPRESSION = (".gz", ".zst")
STDIN = "-"
LINE_MAX_BYTES = 1024 * 1024
"""A longer line is rejected and skipped in pieces, so that a file without line ends does not fill the memory."""

_BOM = "\ufeff"
_READ_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_STRUCTURE = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
_SIGNATURES = (
    (b"\x1f\x8b", "a file that gzip has compressed; unpack it first"),
    (b"PK\x03\x04", "a ZIP archive or a spreadsheet; unpack it first, or save it as CSV"),
    (b"PAR1", "Parquet; add --format parquet"),
    (b"\xff\xfe", "text in UTF-16; save the file as UTF-8"),
    (b"\xfe\xff", "text in UTF-16; save the file as UTF-8"),
)
_CLOSED_CELL = rb'(?:[^",\r\n][^,\r\n]*+|"(?:[^"]++|"")*+")?'
_OPEN_RECORD = re.compile(rb'(?:%b,)*+"(?:[^"]++|"")*+' % _CLOSED_CELL)
_BARE_CR = "whose lines end in a carriage return alone; save it with line feeds (LF) as line ends"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the input.

    `fields` may become an envelope: an object, or text that holds no JSON object. `flaw` says why it never will.
    `original` is the unchanged row, for a person to correct: text, or an object if the file is no text.
    `end` is the position in the input after this row: bytes, or rows of a Parquet file.
    """

    number: int
    fields: Mapping[str, Any] | bytes
    original: Any
    end: int
    flaw: InvalidEnvelope | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a text file, numbered from 1; `end` is the position in the input after it, in bytes."""

    number: int
    raw: bytes
    end: int
    flaw: InvalidEnvelope | None

    @classmethod
    def of(cls, number: int, raw: bytes, end: int) -> Self:
        """Make a line; one that is not UTF-8 or far too long gets a flaw, and the latter is cut."""
        if len(raw.rstrip(b"\r\n")) >= LINE_MAX_BYTES:
            flaw = InvalidEnvelope("envelope", f"is a line of more than {LINE_MAX_BYTES} bytes; shorten it")
            return cls(number, raw[:1000] + "…".encode(), end, flaw)
        try:
            raw.decode()
        except UnicodeDecodeError as exc:
            problem = f"is not UTF-8 text (byte {exc.start + 1}); save the file as UTF-8"
            return cls(number, raw, end, InvalidEnvelope("envelope", problem))
        return cls(number, raw, end, None)

    @property
    def text(self) -> str:
        """The line as a person reads it."""
        return self.raw.decode(errors="backslashreplace").rstrip("\r\n")


class RowSource(AbstractContextManager["RowSource", None]):
    """One readable input; iterate it once, and close it. Raises GiveUp when it can't be read, or no further.

    Rows are numbered from 1: by the line where they begin, in a Parquet file and in a JSON document by row. What gzip
    or Zstandard has compressed is unpacked, whatever the file is called.
    """

    def __init__(self, path: str, form: str | None = None, mapping: RowMapping | None = None) -> None:
        self.is_stdin = path == STDIN
        self.name = "stdin" if self.is_stdin else path
        self.form = form or self._guess_form()
        self.mapping = mapping or RowMapping()
        self.mapping.check(self.form)
        self.number_name = "row_number" if self.form == "parquet" else "line"
        """The field name of a row's number in the file of rejects."""
        self.header: tuple[str, ...] = ()
        """The names in a first line that was read as a header."""
        self.is_end_open = False
        """Whether the last line of a CSV that was read has no line end: it may be the half of one."""
        self.total: int | None = None
        """The end of the last row, None when it is not known in advance."""
        self.is_repeatable = not self.is_stdin and Path(path).is_file()
        """Whether the input can be read more than once, as a file can and a pipe can't."""

        self._stream: BinaryIO | None = None
        try:
            self._rows = self._open(Path(path))
        except BaseException:
            # an interrupt, too: no `with` block knows the file yet that would close it; the caller gets the error
            self.__exit__()
            raise

    @property
    def fingerprint(self) -> str:
        """What tells these messages from others: a file, its change and its mapping; a pipe is never the same."""
        if not self.is_repeatable:
            return uuid.uuid4().hex
        path = Path(self.name).resolve()
        status = path.stat()
        return f"{path}|{status.st_mtime_ns}|{status.st_size}|{self.mapping}"

    def reopen(self) -> "RowSource":
        """Open the same input once more."""
        return RowSource(self.name, self.form, self.mapping)

    def __iter__(self) -> Iterator[Row]:
        try:
            yield from self._rows
        except (EOFError, zlib.error) as exc:
            raise GiveUp(f"{self.name}: can't be unpacked any further ({exc}); restore the file") from exc
        except OSError as exc:
            raise GiveUp(f"{self.name}: can't be read any further ({exc.strerror or exc}); try again") from exc

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def _guess_form(self) -> str:
        if self.is_stdin:
            return "jsonl"
        path = Path(self.name)
        form = guess_form(path.name)
        if path.exists() and not path.is_dir() and form is None:
            raise GiveUp(f"{self.name}: its name tells no format; add --format with one of jsonl, csv, parquet")
        return form or "jsonl"  # opening the file will raise the error

    def _open(self, path: Path) -> Iterator[Row]:
        if self.form == "parquet":
            if self.is_stdin:
                raise GiveUp("stdin: a Parquet file is read from its end; give its path")
            return self._open_parquet(path)
        try:
            if not self.is_stdin:
                self._stream = path.open("rb")
            stream = self._unpack(self._stream or sys.stdin.buffer)
            if self.form == "jsonl" and _is_document(stream, path):
                self.number_name = "row_number"
                lines = read_json_values(stream, self.name)
                return (map_row(row, self.mapping) for row in read_json_lines(lines))

            lines = _read_lines(stream)
            if (first := next(lines, None)) is None:
                raise GiveUp(f"{self.name}: is empty; there is nothing to start")
            check_format(first.raw, self.form, self.name)
            lines = chain([first], lines)
            if self.form == "jsonl":
                return (map_row(row, self.mapping) for row in read_json_lines(lines))
            return self._open_csv(lines)
        except (EOFError, zlib.error) as exc:
            raise GiveUp(f"{self.name}: can't be unpacked ({exc}); restore the file") from exc
        except OSError as exc:
            raise GiveUp(f"{self.name}: can't be read ({exc.strerror or exc}); give the path of a file") from exc

    def _unpack(self, stream: Any) -> Any:
        """Give the text of an input, which shows by its first bytes that it is compressed; both can be peeked into."""
        beginning = stream.peek(len(_ZSTD))
        if beginning.startswith(_GZIP):
            return gzip.GzipFile(fileobj=stream)
        if beginning.startswith(_ZSTD):
            check_extra("parquet", "Zstandard", "pyarrow")
            from starter.files.parquet import open_zstd  # noqa: PLC0415 — an extra, and slow to import

            return open_zstd(stream)

        if self.is_repeatable:
            self.total = Path(self.name).stat().st_size
        return stream

    def _open_csv(self, lines: Iterator[Line]) -> Iterator[Row]:
        names, rows = read_names(lines, self.mapping.table, self.name)
        if self.mapping.table.skips_first_line:
            self.header = names
        to_fields = self.mapping.reader(names, self.name, is_text=True).to_fields
        return read_csv_records(self._watch_end(rows), to_fields)

    def _watch_end(self, lines: Iterator[Line]) -> Iterator[Line]:
        for line in lines:
            self.is_end_open = not line.raw.endswith(b"\n")
            yield line

    def _open_parquet(self, path: Path) -> Iterator[Row]:
        check_extra("parquet", "Parquet", "pyarrow")
        from starter.files.parquet import ParquetTable  # noqa: PLC0415 — an extra, and slow to import

        table = ParquetTable(path)
        self.total = table.total
        to_fields = self.mapping.reader(table.names, self.name).to_fields
        return (make_row(to_fields, cells, number) for number, cells in enumerate(table, start=1))


def guess_form(name: str) -> str | None:
    """Give the format that a file's name tells, whether it is compressed or not; None when it tells none."""
    name = name.lower()
    for suffix in SUFFIXES_OF_COMPRESSION:
        name = name.removesuffix(suffix)
    return {**SUFFIXES, ".json": "jsonl"}.get(Path(name).suffix)


def _is_document(stream: Any, path: Path) -> bool:
    """Whether JSON is no object a line: a list, or objects that span lines."""
    beginning = stream.peek(_READ_BYTES).removeprefix(_BOM.encode()).lstrip()
    first, end, _ = beginning.partition(b"\n")
    if first.strip() in (b"{", b"[") or first.startswith((b"[{", b"[ {")):
        return True

    # a name that ends in .jsonl promises lines, and a broken one is refused alone
    is_promised = ".jsonl" in path.suffixes or ".ndjson" in path.suffixes or str(path) == STDIN
    if is_promised or not first.startswith((b"{", b"[")):
        return False
    return first.startswith(b"[") or not end or isinstance(_read_object(first), bytes)


def check_format(first: bytes, form: str, name: str) -> None:
    """Raise GiveUp for a file of another format, which its first line shows."""
    if hint := _find_other_format(first, form):
        raise GiveUp(f"{name}: looks like {hint}")


def _find_other_format(first: bytes, form: str) -> str | None:
    """Recognize a file of another format by its first line: say which it is and what to do, None if it is none."""
    beginning = first.removeprefix(_BOM.encode()).strip()
    if hint := next((hint for signature, hint in _SIGNATURES if first.startswith(signature)), None):
        return hint
    if form == "csv" and beginning.startswith((b"{", b"[")):
        return "JSON; add --format jsonl"
    if form == "jsonl" and (beginning in (b"{", b"[") or beginning.startswith(b"[{")):
        each = ".[]" if beginning.startswith(b"[") else "."
        return f"one JSON document; write an object a line, for example with: jq -c '{each}'"

    return None


ToFields = Callable[[Sequence[Any]], Mapping[str, Any]]
"""Turns the cells of a row into envelope fields; raises InvalidEnvelope."""


def make_row(to_fields: ToFields, cells: Mapping[str, Any], number: int) -> Row:
    """Make a row from a table's cells."""
    try:
        return Row(number, to_fields(tuple(cells.values())), cells, number)
    except InvalidEnvelope as flaw:
        return Row(number, {}, cells, number, flaw)


def _read_lines(stream: BinaryIO) -> Iterator[Line]:
    number = end = 0
    while raw := stream.readline(LINE_MAX_BYTES):
        number += 1
        end += len(raw)
        is_whole = len(raw) < LINE_MAX_BYTES or raw.endswith(b"\n")
        while not is_whole and (rest := stream.readline(LINE_MAX_BYTES)):
            end += len(rest)
            is_whole = rest.endswith(b"\n")
        yield Line.of(number, raw, end)


def read_json_values(stream: Any, name: str) -> Iterator[Line]:
    """Give the values of a JSON document as if each were a line: the items of a list, or one value after another.

    Memory holds one value; raises GiveUp where the document ends inside its list.
    """
    values = _JsonValues()
    number = 0
    while chunk := stream.read(_READ_BYTES):
        while chunk.endswith(b"\\") and (more := stream.read(1)):  # an escape is never cut in two
            chunk += more
        for raw, end in values.split(chunk):
            number += 1
            yield Line.of(number, raw, end)

    if rest := values.take():
        yield Line.of(number + 1, rest, values.position)
    if values.is_list:
        raise GiveUp(f"{name}: ends inside its list after row {number}; restore the file")


class _JsonValues:
    """Cuts JSON at the ends of its values, by its brackets and strings alone; what is between them is not judged."""

    def __init__(self) -> None:
        self.is_list = False
        """Whether a list has begun and not ended, whose items are the values."""
        self.position = 0
        self._depth = 0
        self._is_in_string = False
        self._parts: list[bytes] = []
        self._kept = 0

    def split(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        """Give each value that ends in the next bytes, and the position after it."""
        begin = 0
        for found in _STRUCTURE.finditer(chunk):
            if not self._is_outside_strings(found[0]):
                continue
            if found[0] in (b"{", b"["):
                if self._begins_list(found[0], chunk[begin : found.start()]):
                    begin = found.end()
                continue

            # a value ends with its own bracket, or before a comma or the end of its list
            has_bracket = self._depth == 1 and found[0] != b","
            if not self._ends_value(found[0]):
                continue
            stop = found.end() if has_bracket else found.start()
            self._keep(chunk[begin:stop])
            begin = found.end()
            if raw := self.take():
                yield raw, self.position + stop
        self._keep(chunk[begin:])
        self.position += len(chunk)

    def take(self) -> bytes:
        """Give what has been kept of the present value."""
        raw = b"".join(self._parts).strip()
        self._parts = []
        self._kept = 0
        return raw

    def _is_outside_strings(self, token: bytes) -> bool:
        if token == b'"':
            self._is_in_string = not self._is_in_string
        return not self._is_in_string and token in (b"{", b"[", b"}", b"]", b",")

    def _begins_list(self, token: bytes, before: bytes) -> bool:
        """Count an opening bracket; the first one may be that of the list whose items are the values."""
        is_first = not self._parts and before.strip() in (b"", _BOM.encode())
        if token == b"[" and is_first and self._depth == 0 and not self.is_list:
            self.is_list = True
            return True
        self._depth += 1
        return False

    def _ends_value(self, token: bytes) -> bool:
        if token == b",":
            return self._depth == 0
        if self._depth > 0:
            self._depth -= 1
            return self._depth == 0
        self.is_list = False
        return True

    def _keep(self, piece: bytes) -> None:
        """Keep a piece of the present value, as long as that is not too long to be a row."""
        piece = piece if self._parts else piece.lstrip()
        if piece and self._kept <= LINE_MAX_BYTES:
            self._parts.append(piece)
            self._kept += len(piece)


def read_json_lines(lines: Iterable[Line]) -> Iterator[Row]:
    """Give a row for every line that is not blank."""
    for line in lines:
        raw = line.raw.strip()
        if raw:
            fields = raw if line.flaw else _read_object(raw)
            is_many = isinstance(fields, bytes) and b"\r" in raw and b"\n" not in raw
            flaw = InvalidEnvelope("envelope", f"looks like lines of a file {_BARE_CR}", "NotJson") if is_many else None
            yield Row(line.number, fields, line.text, line.end, flaw or line.flaw)


def _read_object(raw: bytes) -> Mapping[str, Any] | bytes:
    with suppress(ValueError):
        value = parse_json(raw)
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return raw


def map_row(row: Row, mapping: RowMapping) -> Row:
    """Give a row of JSON with the fields of its envelope."""
    if row.flaw is not None or isinstance(row.fields, bytes):
        return row
    try:
        return replace(row, fields=mapping.to_fields(row.fields))
    except InvalidEnvelope as flaw:
        return replace(row, fields={}, flaw=flaw)


def _give_text(lines: Iterable[Line], taken: list[Line]) -> Iterator[str]:
    """Give lines to a CSV parser, and add to `taken` those of its current record."""
    for line in lines:
        taken.append(line)
        text = line.raw.decode(errors="surrogateescape")
        yield text.removeprefix(_BOM) if line.number == 1 else text


def read_names(lines: Iterable[Line], options: TableOptions, name: str) -> tuple[tuple[str, ...], Iterator[Line]]:
    """Give the names of the columns of a CSV file, and the lines of its rows; raises GiveUp."""
    left = iter(lines)
    taken: list[Line] = []
    first = read_first_record(left, taken, name)

    second = next((line for line in left if line.raw.strip()), None)
    following = [] if second is None else _split_cells(second)
    names = options.find_names(first, following, name)

    rest = left if second is None else chain([second], left)
    return names, rest if options.skips_first_line else chain(taken, rest)


def read_first_record(lines: Iterator[Line], taken: list[Line], name: str) -> list[str]:
    """Give the cells of a CSV file's first record, and add its lines to `taken`; raises GiveUp when it is no CSV."""
    cells: list[str] = []
    try:
        cells = next(csv.reader(_give_text(lines, taken), strict=True))
    except csv.Error as exc:
        if taken[0].flaw is None:
            _refuse_foreign_csv(taken[0].raw, name)
            raise GiveUp(f"{name}: its first line is no CSV ({exc}); separate columns by commas") from exc

    if flaw := taken[0].flaw:
        raise GiveUp(f"{name}: its first line {flaw.problem}")
    if len(cells) == 1:
        _refuse_foreign_csv(taken[0].raw, name)
    return [cell.strip() for cell in cells]


def _split_cells(line: Line) -> list[str]:
    """Give about the cells of a line, which may be no record, for comparison."""
    with suppress(csv.Error):
        for cells in csv.reader([line.text]):
            return cells
    return []


def _refuse_foreign_csv(header: bytes, name: str) -> None:
    if b"\r" in header.strip():
        raise GiveUp(f"{name}: looks like a file {_BARE_CR}")
    for separator, word in ((b";", "semicolons"), (b"\t", "tabs"), (b"|", "'|'")):
        if separator in header and b"," not in header:
            raise GiveUp(f"{name}: looks like columns separated by {word}; save it with commas between them")


def is_open_record(line: bytes) -> bool:
    """Whether a CSV record that begins with this line goes on in the next one, as a quoted cell is still open.

    Where this is true of no line of a file, each line is a record, so that the file may be cut at any line.
    """
    return b'"' in line and _OPEN_RECORD.fullmatch(line) is not None


def read_csv_records(lines: Iterable[Line], to_fields: ToFields) -> Iterator[Row]:
    """Give a row for every record of a CSV file after its header; a record that is no valid CSV gets a flaw."""
    taken: list[Line] = []
    # strict: a quote that is never closed would otherwise silently include the rest of the file
    records = csv.reader(_give_text(lines, taken), strict=True)

    while True:
        taken.clear()
        fields: Mapping[str, Any] = {}
        flaw: InvalidEnvelope | None = None

        try:
            cells = next(records)
            if not cells:
                continue
            fields = to_fields(cells)
        except StopIteration:
            return
        except csv.Error as exc:
            flaw = InvalidEnvelope("envelope", f"is no CSV ({exc}); correct its quotes")
        except InvalidEnvelope as exc:
            flaw = exc

        flaw = next((line.flaw for line in taken if line.flaw), flaw)
        original = "\n".join(line.text for line in taken)
        yield Row(taken[0].number, fields, original, taken[-1].end, flaw)
