"""Parquet tables, row by row, and Zstandard: the one module that touches pyarrow, which has no type stubs."""

import importlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from shared.errors import GiveUp
from starter.files.arrow import read_rows

_arrow: Any = importlib.import_module("pyarrow")
_parquet: Any = importlib.import_module("pyarrow.parquet")

_BATCH_ROWS = 1024
_WRITTEN_ROWS = 100_000


class ParquetTable:
    """One Parquet file; memory holds one row group of it at most."""

    def __init__(self, path: Path) -> None:
        """Read the file's footer; raises GiveUp with a sentence when it is no Parquet."""
        self._path = path
        try:
            if path.is_file() and path.stat().st_size == 0:
                raise GiveUp(f"{path}: is empty; there is nothing to start")
            # with nanoseconds, the moments of INT96 would only reach from 1677 to 2262
            self._file = _parquet.ParquetFile(path, pre_buffer=False, coerce_int96_timestamp_unit="us")
        except (OSError, _arrow.ArrowException) as exc:
            raise GiveUp(f"{path}: can't be read as Parquet ({_reason(exc)}); give a Parquet file") from exc

        self.total: int = self._file.metadata.num_rows
        self.names: tuple[str, ...] = tuple(self._file.schema_arrow.names)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Give each row by column, see `read_values`. Raises GiveUp where the file is damaged."""
        number = 0
        try:
            for batch in self._read_batches():
                for row in read_rows(batch):
                    number += 1
                    yield row
        except (OSError, _arrow.ArrowException) as exc:
            raise GiveUp(f"{self._path}: can't be read after row {number} ({_reason(exc)}); restore the file") from exc

    def _read_batches(self) -> Iterator[Any]:
        batches = self._file.iter_batches(batch_size=_BATCH_ROWS)
        schema = find_schema(self._file)
        return batches if schema.equals(self._file.schema_arrow) else (batch.cast(schema) for batch in batches)


def find_schema(file: Any) -> Any:
    """Give the columns of a ParquetFile; moments of INT96, which have no zone of their own, are in UTC."""
    leaves = file.schema
    physical = [leaves.column(place).physical_type for place in range(len(leaves))]
    if "INT96" not in physical:
        return file.schema_arrow

    rest = iter(physical)
    return _arrow.schema([field.with_type(_find_type(field.type, rest)) for field in file.schema_arrow])


def write_table(path: Path, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> int:
    """Write rows as one Parquet file and give their number; types are "string" and "timestamp", which is in UTC."""
    types = {"string": _arrow.string(), "timestamp": _arrow.timestamp("us", "UTC")}
    schema = _arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    count = 0
    rest = iter(rows)

    with _parquet.ParquetWriter(path, schema) as writer:
        while some := list(islice(rest, _WRITTEN_ROWS)):
            cells = zip(*some, strict=True)
            arrays = [_arrow.array(column, field.type) for column, field in zip(cells, schema, strict=True)]
            writer.write_batch(_arrow.RecordBatch.from_arrays(arrays, schema=schema))
            count += len(some)

    return count


def open_zstd(stream: BinaryIO) -> Any:
    """Open a stream of bytes that Zstandard has compressed; reading raises OSError where it is damaged."""
    return io.BufferedReader(_arrow.CompressedInputStream(stream, "zstd"))


def _find_type(kind: Any, physical: Iterator[str]) -> Any:
    """Give the type of a column whose leaves have these physical types: moments of INT96 are in UTC."""
    types = _arrow.types
    if isinstance(kind, _arrow.BaseExtensionType):
        _find_type(kind.storage_type, physical)
        return kind

    if types.is_struct(kind):
        return _arrow.struct([field.with_type(_find_type(field.type, physical)) for field in kind])

    if types.is_map(kind):
        key = kind.key_field.with_type(_find_type(kind.key_type, physical))
        return _arrow.map_(key, kind.item_field.with_type(_find_type(kind.item_type, physical)), kind.keys_sorted)

    if types.is_nested(kind):
        item = kind.value_field.with_type(_find_type(kind.value_type, physical))
        return _arrow.list_(item) if types.is_list(kind) else kind

    return _arrow.timestamp("us", "UTC") if next(physical) == "INT96" else kind


def _reason(exc: Any) -> str:
    return str(exc).strip().partition("\n")[0][:200] or type(exc).__name__
