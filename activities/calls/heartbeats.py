"""Heartbeats of an activity, without which the server takes its worker for dead."""

import asyncio
import contextlib
from collections.abc import Generator
from datetime import timedelta

from temporalio import activity

BEATS_PER_TIMEOUT = 3  # two of them may be late or lost


@contextlib.contextmanager
def beating(timeout: timedelta) -> Generator[None]:
    """Send heartbeats during a `with` block of an activity; a block that ends soon sends none."""
    loop = asyncio.get_running_loop()
    pause = timeout.total_seconds() / BEATS_PER_TIMEOUT

    def beat() -> None:
        nonlocal timer
        activity.heartbeat()
        timer = loop.call_later(pause, beat)

    timer = loop.call_later(pause, beat)
    try:
        yield
    finally:
        timer.cancel()
