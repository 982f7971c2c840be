"""The progress of a load on standard error: a bar on a terminal, a plain line every few seconds elsewhere."""

import contextlib
import math
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from shared.messages.timespan import format_seconds
from starter.local.terminal import echo_err

if TYPE_CHECKING:
    import rich.progress

PLAIN_EVERY_SECONDS = 5.0
BAR_EVERY_SECONDS = 0.2


class _Plain:
    every_seconds = PLAIN_EVERY_SECONDS

    def __init__(self, total: int | None) -> None:
        self._total = total

    def show(self, position: float, done: int, seconds: float, counts: str) -> None:
        text = f"{counts}; {done / seconds:,.0f} a second"
        if self._total:
            text += f"; {math.floor(100 * position / self._total)}% done"
        if self._total and position:
            text += f", {format_seconds(seconds * (self._total - position) / position)} to go"
        echo_err(text)


class _Bar:
    every_seconds = BAR_EVERY_SECONDS

    def __init__(self, bar: "rich.progress.Progress", total: int | None) -> None:
        self._bar = bar
        self._position = 0.0
        self._task = bar.add_task("", total=total, counts="", rate="")

    def show(self, position: float, done: int, seconds: float, counts: str) -> None:
        if position < self._position:  # the input is read again from its beginning
            self._bar.reset(self._task)
        self._position = position
        self._bar.update(self._task, completed=position, counts=counts, rate=f"{done / seconds:,.0f} a second")


Progress = _Plain | _Bar
"""Shows how far a load has come: `show` is to be called every `every_seconds`."""


@contextlib.contextmanager
def open_progress(total: int | None) -> Generator[Progress]:
    """Show progress during a `with` block; `total` is the last position, None when it is unknown."""
    if sys.stderr.isatty():
        with _make_bar() as bar:
            yield _Bar(bar, total)
    else:
        yield _Plain(total)


def _make_bar() -> "rich.progress.Progress":
    from rich.console import Console  # noqa: PLC0415 — slow to import, and only a terminal needs it
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    return Progress(
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[counts]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,  # the summary that follows replaces it
    )
