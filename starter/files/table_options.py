"""Table options: what is told of the rows and columns of text files, and whether a first line is a header or a row."""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from shared.errors import GiveUp, InvalidEnvelope, InvalidSetting
from shared.messages.envelope import Envelope
from starter.local.terminal import plural

_FIELDS = frozenset(Envelope.model_fields)
_SHOWN_MAX = 20
_EXAMPLE = ("id", "url", "note")

_NUMBER = re.compile(r"[+-]?[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?%?")
_DATE = re.compile(r"[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?:[T ].*)?")
_UUID = re.compile(r"\{?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\}?")
_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)+")
_WORD = re.compile(r"[^\W\d]+(?:[ -][^\W\d]+)*")
_LETTERS = re.compile(r"[^\W\d_]+")
_DIGITS = re.compile(r"\d+")
_VALUES = frozenset(("true", "false", "null", "none", "nan", "n/a"))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a person says of CSV files: the names of their columns, and whether their first line is a header.

    Without both, a first line that looks like a row is refused: taken for a header, it would be lost in silence. With
    columns alone, a first line that looks like a header is refused: it would become a message.
    """

    columns: tuple[str, ...] = ()
    """The names, in place of those of a header; without both, columns are called 1, 2, 3 and so on."""
    has_header: bool | None = None
    """None: nothing was said, so there is one unless the columns are named."""
    fills_rows: bool = False
    """Whether a row with fewer cells than columns ends in empty ones; otherwise it was cut off, and is refused."""

    @classmethod
    def read(cls, columns: str | None, has_header: bool | None, *, fills_rows: bool = False) -> Self:  # noqa: FBT001 — None says that nothing was said
        """Read the options as typed; raises InvalidSetting."""
        if columns is None:
            return cls((), has_header, fills_rows)

        try:
            names = tuple(name.strip() for cells in csv.reader([columns], strict=True) for name in cells)
        except csv.Error as exc:
            raise InvalidSetting(f"--columns: is no line of CSV ({exc}); write for example rank,id") from exc

        if not names or "" in names:
            raise InvalidSetting("--columns: leaves a name empty; name every column, for example rank,id")
        if twice := _find_repeated(names):
            raise InvalidSetting(f"--columns: names {twice!r} twice; give each column a name of its own")
        return cls(names, has_header, fills_rows)

    @property
    def skips_first_line(self) -> bool:
        """Whether the first line of each file is a header, and no row."""
        return not self.columns if self.has_header is None else self.has_header

    def find_names(self, first: Sequence[str], second: Sequence[str], source: str) -> tuple[str, ...]:
        """Give the names of the columns by the cells of the first two lines.

        Raises GiveUp where the first line may be something else than what it would be taken for.
        """
        if not first:
            raise GiveUp(f"{source}: its first line is blank; remove it, or name the columns with --columns")
        if self.has_header is None and self.columns:
            self._refuse_header(first, second, source)
        elif self.has_header is None:
            _refuse_row(first, second, source)

        if not self.columns:
            names = first if self.skips_first_line else map(str, range(1, len(first) + 1))
            return tuple(name.strip() for name in names)

        if len(first) > len(self.columns) or (len(first) < len(self.columns) and not self.fills_rows):
            count = f"names {plural(len(self.columns), 'column')}, but the first line has {plural(len(first), 'cell')}"
            raise GiveUp(f"{source}: --columns {count}; name each column once")
        return self.columns

    def check_cells(self, cells: Sequence[object], names: Sequence[str]) -> None:
        """Raise InvalidEnvelope for a row that has not a cell for each column."""
        if len(cells) == len(names):
            return
        count = f"has {plural(len(cells), 'cell')} for {plural(len(names), 'column')}"
        if len(cells) > len(names):
            raise InvalidEnvelope("envelope", f"{count}; quote its commas")
        if not self.fills_rows:
            remedy = "restore what is missing, or add --fill-rows if its last cells are empty"
            raise InvalidEnvelope("envelope", f"{count}; {remedy}")

    def _refuse_header(self, first: Sequence[str], second: Sequence[str], source: str) -> None:
        names = [name.casefold() for name in self.columns]
        is_named = any(cell.strip().casefold() == name for cell, name in zip(first, names, strict=False))
        if is_named or any(map(_is_name_of, first, second)):
            what = f"its first line looks like a header ({_show(first)})"
            raise GiveUp(f"{source}: {what}; add --header to leave it out, or --no-header if it is a row")


def check_names(names: Sequence[str], source: str) -> None:
    """Raise GiveUp where two columns have one name, so that one of them would be lost."""
    if twice := _find_repeated(names):
        raise GiveUp(f"{source}: has two columns {twice!r}; rename one")


def show_names(names: Sequence[str]) -> str:
    """Give the names of columns for a sentence."""
    return _show(names) or "none"


def _refuse_row(first: Sequence[str], second: Sequence[str], source: str) -> None:
    names = [cell.strip() for cell in first]
    if _FIELDS.intersection(names):
        return

    cells = [*second, *[""] * len(names)]
    if any(_is_value(name) or _is_like(name, cell.strip()) for name, cell in zip(names, cells, strict=False)):
        what = f"its first line looks like a row and not like a header ({_show(first)})"
        example = ",".join(_EXAMPLE[: len(first)])
        ways = f"add --columns with a name for each column, like {example}, or --header if these are the names"
        raise GiveUp(f"{source}: {what}; {ways}")


def _is_value(name: str) -> bool:
    """Whether a cell is hardly the name of a column."""
    is_written = any(form.fullmatch(name) for form in (_NUMBER, _DATE, _UUID))
    return is_written or "://" in name or "@" in name or name.startswith(("{", "[")) or name.lower() in _VALUES


def _is_like(name: str, cell: str) -> bool:
    """Whether a name that is no plain word looks like the cell below it: `google.com`, `sku-17`."""
    if not name or _WORD.fullmatch(name):
        return False
    return _to_shape(name) == _to_shape(cell) or bool(_HOST.fullmatch(name) and _is_host(cell))


def _is_host(cell: str) -> bool:
    return bool(_HOST.fullmatch(cell)) and not _NUMBER.fullmatch(cell)


def _is_name_of(first: str, second: str) -> bool:
    """Whether a plain word stands above what is none."""
    word = first.strip()
    is_word = bool(_WORD.fullmatch(word)) and word.lower() not in _VALUES
    return is_word and _is_value(second.strip())


def _to_shape(text: str) -> str:
    return _DIGITS.sub("0", _LETTERS.sub("a", text))


def _find_repeated(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _show(cells: Sequence[str]) -> str:
    return ", ".join(repr(cell.strip()[:40]) for cell in cells[:_SHOWN_MAX])
