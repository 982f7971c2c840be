"""The tables of a report, before they are written as Parquet and HTML."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report; in a distribution, `bounds` are the lower bounds of its buckets."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    bounds: tuple[float, ...] = field(default=())
