"""The screen: what people read goes to standard error, data goes to standard output."""

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from shared.timespan import format_moment, format_seconds

MEASURED_ROWS = 50
"""Rows of a table that decide how wide its columns are; later ones may stick out, so that a table streams."""


def tell(text: str) -> None:
    """Say something to the person at the terminal; nobody listening is no error."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write("\n".join(clean(line) for line in text.split("\n")) + "\n")
        sys.stderr.flush()


def print_json(value: Any) -> None:
    """Write one JSON document on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=_write_moment) + "\n")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows in columns; the first ones say how wide those are."""
    source = iter(rows)
    first = [[clean(cell) for cell in row] for row in islice(source, MEASURED_ROWS)]
    widths = [max(map(len, column)) for column in zip(header, *first, strict=True)]
    for row in chain([header], first, source):
        cells = [clean(cell).ljust(width) for cell, width in zip(row, widths, strict=True)]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def print_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Write names and values, one pair a line."""
    listed = list(pairs)
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        sys.stdout.write(f"{name.ljust(width)}  {clean(value)}".rstrip() + "\n")


def clean(text: str) -> str:
    """Make text harmless for a terminal: what can't be printed becomes "�"."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def describe_moment(moment: datetime | None, now: datetime | None = None) -> str:
    """Write a moment in UTC and how far away it is: "2026-11-21 20:00:00 UTC (in 3 h)"."""
    if moment is None:
        return "-"
    return f"{format_moment(moment.timestamp())} ({describe_distance(moment, now)})"


def describe_distance(moment: datetime, now: datetime | None = None) -> str:
    """Write how far away a moment is: "in 3 h", "2 min ago"."""
    seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return f"in {format_seconds(seconds)}" if seconds >= 0 else f"{format_seconds(-seconds)} ago"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: "1 message", "2,000 messages"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _write_moment(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} has no form in JSON")
