"""`dormice dev` as a process of a test's own, and what it says."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psutil

from tests.conftest import wait_until


@dataclass
class Dev:
    """One running `dormice dev` and what it has said so far."""

    process: asyncio.subprocess.Process
    said: bytes = b""

    async def listen(self) -> None:
        """Take in what it says until it ends."""
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.said += line

    @property
    def address(self) -> str | None:
        """Where its server answers, once it has said so."""
        found = re.search(rb"server   (127\.0\.0\.1:\d+),", self.said)
        return found.group(1).decode() if found and b"Ctrl-C ends both" in self.said else None

    @property
    def family(self) -> list[psutil.Process]:
        """All processes below it: parent watches, server, worker."""
        return psutil.Process(self.process.pid).children(recursive=True)


async def begin_dev(
    spawn: Callable[..., Awaitable[asyncio.subprocess.Process]], *arguments: str, **options: Any
) -> Dev:
    """Start `dormice dev` on free ports, without the Web UI, and wait until it greets or ends."""
    dev = Dev(await spawn("dev", "--port", "0", "--no-ui", "--page-port", "0", *arguments, **options))
    listening = asyncio.create_task(dev.listen())
    await wait_until(lambda: dev.address or listening.done(), "it greets or ends", 60)
    return dev
