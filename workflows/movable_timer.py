"""Movable timer: the one timer of a workflow that sleeps until a moment that may change."""

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow


def span_until(moment: float) -> timedelta:
    """Return how long a timer must run until a moment, by the workflow's clock."""
    # a millisecond more, so that rounding never fires the timer too early
    return timedelta(seconds=max(moment - workflow.time(), 0.0) + 0.001)


class MovableTimer:
    """Rings once a moment has come; its timer runs on as long as the moment stays the same."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._wake = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, wake: float) -> None:
        """Ring at `wake` (seconds since the epoch) instead of the moment set before; infinite means never."""
        if wake == self._wake:
            return

        if self._timer is not None:
            self._timer.cancel()
        self._wake = wake
        self._timer = None

        if wake != math.inf:
            delay = span_until(wake).total_seconds()
            self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._wake = math.inf
        self._timer = None
        self._ring()
