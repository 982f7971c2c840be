"""The terminal: what people read goes to standard error, data goes to standard output."""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, TypeVar

import orjson

from shared.messages.timespan import format_moment, format_seconds

MEASURED_ROWS = 50
"""Only the first rows of a table set its column widths, so that it streams; later rows may be wider."""

NAME_MIN = 16
"""Characters of a name that are always shown, however narrow the terminal is."""

WRAPPED_MIN = 20
"""Characters kept free for the last column; its text, such as a reason, may be longer than a line."""

Item = TypeVar("Item")


def echo_err(text: str) -> None:
    """Write text to standard error; a closed pipe is no error."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write("\n".join(clean(line) for line in text.split("\n")) + "\n")
        sys.stderr.flush()


def write_json(value: Any) -> str:
    """Give a document as JSON; moments are RFC 3339 in UTC."""
    return _ENCODER.encode(value)


def print_json(value: Any) -> None:
    """Write one JSON document on a line of its own."""
    sys.stdout.write(write_json(value) + "\n")


def print_items(
    items: Sequence[Item],
    to_document: Callable[[Item], Any],
    header: Sequence[str],
    to_cells: Callable[[Item], Sequence[str]],
    *,
    is_json: bool,
    cuts_names: bool = False,
) -> None:
    """Write each item: as JSON on a line of its own, or as a row of a table; without any item, write nothing."""
    if is_json:
        for item in items:
            print_json(to_document(item))
    elif items:
        print_table(header, map(to_cells, items), cuts_names=cuts_names)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, cuts_names: bool = False) -> None:
    """Write rows in columns; `cuts_names` cuts the first one where the table would be wider than the terminal."""
    source = iter(rows)
    first = [[clean(cell) for cell in row] for row in islice(source, MEASURED_ROWS)]
    widths = [max(map(len, column)) for column in zip(header, *first, strict=True)]
    maximum = _find_room(widths) if cuts_names and sys.stdout.isatty() else None
    widths[0] = min(widths[0], maximum or widths[0])

    for row in chain([header], first, source):
        name, *others = map(clean, row)
        cells = [name if maximum is None else shorten(name, maximum), *others]
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _find_room(widths: Sequence[int]) -> int:
    """Return how many characters of the terminal the first column may have; the last column may be wrapped."""
    _, *middle, last = widths
    rest = sum(middle) + min(last, WRAPPED_MIN) + 2 * (len(widths) - 1)
    return max(NAME_MIN, shutil.get_terminal_size().columns - rest)


def shorten(text: str, width: int) -> str:
    """Cut text in the middle to `width` characters: both ends of an id are needed to recognize it."""
    if len(text) <= width:
        return text
    kept = width - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def print_fields(pairs: Iterable[tuple[str, str]]) -> None:
    """Write names and values, one pair a line."""
    listed = list(pairs)
    width = max(len(name) for name, _ in listed)
    for name, value in listed:
        sys.stdout.write(f"{name.ljust(width)}  {clean(value)}".rstrip() + "\n")


def clean(text: str) -> str:
    """Make text harmless for a terminal: characters that can't be printed become "�"."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "�" for c in text)


def describe_moment(moment: datetime | None) -> str:
    """Write a time in UTC and how far away it is: "2026-11-21 20:00:00 UTC (in 3 h)"."""
    return "-" if moment is None else f"{format_moment(moment.timestamp())} ({describe_distance(moment)})"


def describe_distance(moment: datetime) -> str:
    """Write how far away a time is: "in 3 h", "2 min ago"."""
    seconds = (moment - datetime.now(UTC)).total_seconds()
    return f"in {format_seconds(seconds)}" if seconds >= 0 else f"{format_seconds(-seconds)} ago"


def has_foreground() -> bool:
    """Say whether standard output is a terminal that can be drawn on, and belongs to this process now."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return False
    with contextlib.suppress(OSError):  # a terminal that is not ours, as of another session
        return os.tcgetpgrp(sys.stdout.fileno()) == os.getpgrp()
    return True


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: "1 message", "2,000 messages"."""
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def _write_moment(value: Any) -> str:
    if isinstance(value, datetime):
        moment = value if value.tzinfo is UTC else value.astimezone(UTC)
        return orjson.dumps(moment, option=orjson.OPT_UTC_Z)[1:-1].decode()  # isoformat takes three times as long
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_write_moment)
"""Made once, which halves the time of a line."""
