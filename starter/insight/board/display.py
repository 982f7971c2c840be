"""The display of the board: kept up to date in place on a terminal, or written as a line a look into a pipe."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Generator, Mapping

from rich.console import Console
from rich.live import Live
from rich.padding import Padding

from starter.insight.board.reader import BoardReader
from starter.insight.board.view import draw
from starter.local.terminal import clean, print_json

DRAW_SECONDS_MAX = 1.0
"""Times that pass are drawn at least this often, however seldom the server is read."""
FIRST_SECONDS = 0.2


class Display:
    """Shows what a reader reads until `stopping` is set, and looks at it every `interval` seconds."""

    def __init__(self, reader: BoardReader, interval: float, stopping: asyncio.Event) -> None:
        self._reader = reader
        self._interval = interval
        self._stopping = stopping

    async def draw(self, console: Console, footer: str, *, is_alone: bool) -> None:
        """Draw it in place; what this process prints meanwhile comes above it.

        `is_alone` takes the whole terminal, and gives it back as it was, with the last board below.
        """
        live = Live(
            console=console,
            auto_refresh=False,
            screen=is_alone,
            vertical_overflow="crop",
            redirect_stderr=sys.stderr.isatty(),  # what goes into a file must not come onto the terminal
        )
        with live:
            while not self._stopping.is_set():
                is_complete = self._reader.is_complete
                board = draw(self._reader.status(), footer, is_complete=is_complete)
                shown = board if is_alone else Padding(board, (1, 0, 0, 0))
                live.update(shown, refresh=True)
                pause = min(self._interval, DRAW_SECONDS_MAX) if is_complete else FIRST_SECONDS
                await self._pause(pause)

        if is_alone:
            console.print(draw(self._reader.status(), is_complete=self._reader.is_complete))

    async def write(self, *, is_json: bool) -> None:
        """Write a line, or a JSON document, for each look; the first one as soon as everything was read."""
        while not (self._reader.is_complete or self._stopping.is_set()):
            await self._pause(FIRST_SECONDS)
        while not self._stopping.is_set():
            write_status(self._reader, is_json=is_json)
            await self._pause(self._interval)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


def write_status(reader: BoardReader, *, is_json: bool) -> None:
    """Write what was read last on standard output, at once."""
    status = reader.status()
    if is_json:
        print_json(status.to_document())
    else:
        sys.stdout.write(f"{clean(status.write_line())}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def taking_keys(calls: Mapping[str, Callable[[], object]]) -> Generator[None]:
    """Take the keyboard of this terminal for a `with` block: keys that are in `calls` do so, others do nothing."""
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    if keyboard is None:
        yield
        return

    def take() -> None:
        try:
            pressed = os.read(keyboard, 64).decode(errors="replace")
        except OSError:  # the terminal has gone
            loop.remove_reader(keyboard)
            return
        for key in pressed:
            calls.get(key, lambda: None)()

    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()
    tty.setcbreak(keyboard)
    modes = termios.tcgetattr(keyboard)
    modes[6][termios.VMIN] = 0  # Ctrl-C takes back what is there to read: a read that waited would wait for ever
    termios.tcsetattr(keyboard, termios.TCSANOW, modes)
    loop.add_reader(keyboard, take)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
