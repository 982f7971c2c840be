"""A program at a terminal of a test's own: what it shows there, and keys that are pressed."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import wait_until
from tests.support.processes import ending_family

TAKE_IT = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
"""The program gets the terminal as its own, so that Ctrl-C there reaches it."""

CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """The side of a terminal at which a person sits."""

    def __init__(self, process: asyncio.subprocess.Process, master: int, slave: int) -> None:
        self.process = process
        self._master = master
        self._slave = slave
        self.raw = b""

    @property
    def said(self) -> str:
        """All that it has shown so far, without control codes."""
        return CONTROL.sub(b"", self.raw).decode(errors="replace")

    @property
    def modes(self) -> list[Any]:
        """How the terminal treats keys, and so on."""
        return termios.tcgetattr(self._slave)

    def take(self) -> None:
        """Take in what the program has written."""
        with contextlib.suppress(OSError):
            self.raw += os.read(self._master, 1 << 16)

    def press(self, keys: str) -> None:
        """Press keys, of which the character with the number 3 is Ctrl-C."""
        os.write(self._master, keys.encode())

    async def wait_for(self, text: str, seconds: float = 60) -> None:
        """Wait until it has shown a text."""
        await wait_until(lambda: text in self.said, f"{text!r} is shown", seconds)


@contextlib.asynccontextmanager
async def at_terminal(
    *command: str, cwd: Path, env: Mapping[str, str], size: tuple[int, int] = (40, 100)
) -> AsyncGenerator[Terminal]:
    """Run a program at a terminal of (rows, columns) during an `async with` block, at whose end it is killed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    kept = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", TAKE_IT, *command),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env={**kept, "TERM": "xterm-256color"},
    )
    terminal = Terminal(process, master, slave)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, terminal.take)

    try:
        async with ending_family(process):
            yield terminal
    finally:
        loop.remove_reader(master)
        os.close(master)
        os.close(slave)
