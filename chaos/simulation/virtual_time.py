"""Virtual time: an event loop whose clock jumps to the next due callback, and clocks that follow it."""

import asyncio
import random
import selectors
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

EPOCH = 1_800_000_000.0
"""The begin of each simulation, in seconds since 1970."""

SKEW: ContextVar[float] = ContextVar("SKEW", default=0.0)
"""Seconds by which the present process's clock is ahead of the server's."""


class _JumpingSelector(selectors.SelectSelector):
    """Never waits: it advances the virtual time by the timeout at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is scheduled any more, so virtual time can't go on")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time, in seconds from 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Give the virtual time."""
        return self._jumping.now


@contextmanager
def virtual_clocks(loop: VirtualLoop, seed: int) -> Generator[None]:
    """Make `time.time`, `time.monotonic` and the module `random` follow the simulation during a `with` block."""
    before: tuple[Any, ...] = (time.time, time.monotonic, random.getstate())
    time.time = lambda: EPOCH + loop.time() + SKEW.get()
    time.monotonic = loop.time
    random.seed(seed)

    try:
        yield
    finally:
        time.time, time.monotonic = before[:2]
        random.setstate(before[2])
