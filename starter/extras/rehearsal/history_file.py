"""History files: rows of an id and a moment at which that page changed, in CSV, JSON lines or Parquet, in any order."""

import csv
import importlib
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from shared.errors import GiveUp, check_extra
from shared.messages.json_value import parse_json
from shared.messages.timespan import MOMENT_MAX
from starter.extras.rehearsal.policies import to_datetime, to_microseconds
from starter.extras.rehearsal.simulation import ChangeHistory
from starter.files.columns import UnreadableValue, to_text
from starter.files.rows import SUFFIXES

MOMENT_MIN = -MOMENT_MAX
Cells = tuple[Any, Any]
"""The id and the moment of one row, as they were read."""


@dataclass(frozen=True, slots=True)
class HistoryColumns:
    """The names of the columns, or of the members of JSON objects, that are read."""

    id: str = "id"
    changed_at: str = "changed_at"

    def check(self, names: Sequence[str], source: str) -> None:
        """Raise GiveUp unless both are among the names of a table."""
        for name, option in ((self.id, "--id-column"), (self.changed_at, "--changed-column")):
            if name not in names:
                shown = ", ".join(repr(name[:40]) for name in names[:20]) or "none"
                raise GiveUp(f"{source}: has no column {name!r}; its columns are {shown}; name one with {option}")

    def read(self, cells: Cells) -> tuple[str, int | None]:
        """Give the id and the moment in microseconds, None for a page without a change; raises ValueError."""
        name, moment = cells
        name = to_text(name)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{self.id}: is {name!r:.60}; give text that is not empty")
        try:
            return name, None if moment is None or moment == "" else read_moment(moment)
        except ValueError as exc:
            raise ValueError(f"{self.changed_at}: {exc}") from exc


def read_moment(value: Any) -> int:
    """Read a moment as microseconds since 1970: RFC 3339 with an offset, or seconds since 1970; raises ValueError."""
    if isinstance(value, UnreadableValue):
        raise ValueError(value.problem)  # noqa: TRY004 — as for other values that are no moment
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, str):
        value = _read_text(value)

    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"is {value.isoformat()!r}, which has no offset; add one, for example Z")
        return to_microseconds(value)

    if isinstance(value, int | float) and not isinstance(value, bool):
        if not MOMENT_MIN < value < MOMENT_MAX:
            raise ValueError(f"is {value}, too many for seconds since 1970; give seconds, not milliseconds")
        return round(value * 1_000_000)

    shown = value.isoformat() if isinstance(value, date) else value
    raise ValueError(f"is {shown!r:.60}, no moment; write 2026-11-21T20:00:00Z, or seconds since 1970")


def _read_text(text: str) -> datetime | float | str:
    try:
        return datetime.fromisoformat(text.upper()) if "-" in text[1:] else float(text)
    except ValueError:
        return text


def guess_form(path: str) -> str:
    """Give the format of a file by its name; raises GiveUp."""
    if (form := SUFFIXES.get(Path(path).suffix.lower())) is None:
        raise GiveUp(f"{path}: its name tells no format; let it end in .csv, .jsonl or .parquet")
    return form


class ChangeHistories:
    """The histories of a file in memory, about 8 bytes a change and 200 a page."""

    def __init__(self, histories: Mapping[str, Sequence[int]]) -> None:
        self._histories = histories

    @classmethod
    def load(cls, path: str, columns: HistoryColumns) -> "ChangeHistories":
        """Read a whole file; raises GiveUp with the first row that can't be used."""
        found = defaultdict[str, "array[int]"](lambda: array("q"))
        for number, cells in read_rows(path, columns):
            try:
                name, moment = columns.read(cells)
            except ValueError as exc:
                raise GiveUp(f"{path}: row {number}: {exc}") from exc
            changes = found[name]
            if moment is not None:
                changes.append(moment)

        if not found:
            raise GiveUp(f"{path}: is empty; give rows of {columns.id} and {columns.changed_at}")
        return cls({name: array("q", sorted(set(changes))) for name, changes in found.items()})

    def __iter__(self) -> Iterator[ChangeHistory]:
        return iter(self._histories.items())

    def __len__(self) -> int:
        return len(self._histories)


def read_rows(path: str, columns: HistoryColumns) -> Iterator[tuple[int, Cells]]:
    """Give the cells of each row with its number, from 1 without a header; raises GiveUp."""
    read = {"csv": _read_csv, "jsonl": _read_json_lines, "parquet": _read_parquet}[guess_form(path)]
    try:
        yield from enumerate(read(path, columns), start=1)
    except OSError as exc:
        raise GiveUp(f"{path}: can't be read ({exc.strerror or exc}); give the path of a file") from exc
    except UnicodeDecodeError as exc:
        raise GiveUp(f"{path}: is not UTF-8 text ({exc.reason}); save it as UTF-8") from exc


def _read_csv(path: str, columns: HistoryColumns) -> Iterator[Cells]:
    with Path(path).open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.reader(stream, strict=True)
        try:
            names = [name.strip() for name in next(rows, ())]
            if not names:
                raise GiveUp(
                    f"{path}: is empty; give a header with {columns.id},{columns.changed_at} and rows below it"
                )

            columns.check(names, path)
            first = names.index(columns.id)
            second = names.index(columns.changed_at)

            for cells in rows:
                if len(cells) == len(names):
                    yield cells[first], cells[second]
                elif cells:
                    problem = f"has {len(cells)} cells for {len(names)} columns; correct it"
                    raise GiveUp(f"{path}: line {rows.line_num}: {problem}")
        except csv.Error as exc:
            raise GiveUp(f"{path}: line {rows.line_num}: is no CSV ({exc}); correct it") from exc


def _read_json_lines(path: str, columns: HistoryColumns) -> Iterator[Cells]:
    for number, line in read_objects(path):
        if columns.id not in line:
            raise GiveUp(f"{path}: line {number}: has no member {columns.id!r}; add it, or name it with --id-column")
        yield line[columns.id], line.get(columns.changed_at)


def read_objects(path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Give the object on each line of a file that is not blank, with the line's number; raises GiveUp."""
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except ValueError as exc:
                raise GiveUp(f"{path}: line {number}: {exc}; write one JSON object a line") from exc
            if not isinstance(value, dict):
                raise GiveUp(f"{path}: line {number}: is no JSON object; write one a line")
            yield number, value  # pyright: ignore[reportUnknownVariableType] — any members


def _read_parquet(path: str, columns: HistoryColumns) -> Iterator[Cells]:
    table = _open_parquet().ParquetTable(Path(path))
    columns.check(table.names, path)
    for row in table:
        yield row[columns.id], row[columns.changed_at]


def write_history(path: Path, rows: Iterable[tuple[str, int | None]]) -> int:
    """Write rows of an id and a moment in microseconds, as CSV or Parquet by the file's name; gives their number.

    Raises GiveUp for another name. What was in the file is replaced once all is written.
    """
    form = guess_form(str(path))
    if form == "jsonl":
        raise GiveUp(f"{path}: histories are written as CSV or Parquet; let the name end in .csv or .parquet")

    cells = ((name, None if moment is None else to_datetime(moment)) for name, moment in rows)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        count = _write_csv(unfinished, cells) if form == "csv" else _write_parquet(unfinished, cells)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)

    return count


def _write_csv(path: Path, rows: Iterable[tuple[str, datetime | None]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("id", "changed_at"))
        for count, (name, moment) in enumerate(rows, start=1):  # noqa: B007 — the last one counts
            writer.writerow((name, moment and moment.isoformat()))
    return count


def _write_parquet(path: Path, rows: Iterable[tuple[str, datetime | None]]) -> int:
    return _open_parquet().write_table(path, {"id": "string", "changed_at": "timestamp"}, rows)


def _open_parquet() -> Any:
    check_extra("rehearsal", "Parquet", "pyarrow")
    return importlib.import_module("starter.files.parquet")
