"""Limits of time for calls: one timer for all that may take equally long."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any


class Deadlines:
    """Limits the time of calls that may all take equally long, in seconds; belongs to the running event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.loop = asyncio.get_running_loop()
        self._begun: deque[Deadline] = deque()  # the first to end comes first
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no call is limited now, and no timer runs."""
        return not self._begun and self._timer is None

    def begin(self) -> "Deadline":
        """Limit what the current task does in a `with` block, from now on, as `asyncio.timeout` does."""
        deadline = Deadline(self, self.loop.time() + self.seconds, asyncio.current_task(self.loop))
        self._begun.append(deadline)
        if self._timer is None:
            self._timer = self.loop.call_at(deadline.at, self._cut_off)
        return deadline

    def forget_ended(self) -> None:
        """Forget the calls that have ended, up to the first that has not; without any, stop the timer."""
        begun = self._begun
        while begun and begun[0].task is None:
            begun.popleft()
        if not begun and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        begun = self._begun
        now = self.loop.time()
        while begun and (begun[0].task is None or begun[0].at <= now):
            begun.popleft().cut_off()
        self._timer = self.loop.call_at(begun[0].at, self._cut_off) if begun else None


class Deadline:
    """The deadline of one call."""

    __slots__ = ("_cancels_before", "_owner", "at", "is_over", "task")

    def __init__(self, owner: Deadlines, at: float, task: asyncio.Task[Any] | None) -> None:
        self._owner = owner
        self.at = at
        self.is_over = False
        self.task = task
        self._cancels_before = 0 if task is None else task.cancelling()

    def cut_off(self) -> None:
        """Cancel the call, because its time is over."""
        if self.task is not None:
            self.is_over = True
            self.task.cancel()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the call; what was cut off raises TimeoutError, unless somebody else cancelled it too."""
        task = self.task
        self.task = None
        self._owner.forget_ended()
        if not self.is_over or task is None:
            return
        if task.uncancel() <= self._cancels_before and kind is asyncio.CancelledError:
            raise TimeoutError from error
