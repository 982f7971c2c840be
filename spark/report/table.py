"""Tables of a report, before they are written as Parquet and into its page."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report; `bounds` are those of its buckets where it is a distribution."""

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    bounds: tuple[float, ...] = field(default=())
