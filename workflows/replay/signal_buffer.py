"""Hearing: when signals take effect, so that a run that is replayed decides as it did the first time."""

import asyncio
from collections import deque
from collections.abc import Callable

from temporalio import workflow

SERIAL_PATCH = "serial"


class SignalBuffer:
    """Holds signals back while a local activity is at work, until its outcome has been acted upon.

    The SDK core sometimes records a local activity's result in one task and gives it to the workflow in the next: when
    the activity lasts for four fifths of the task timeout, and when somebody queries the workflow meanwhile. A signal
    may come in between. The first time the workflow sees the signal and then the result; on a replay it sees the result
    first. So here the order is always the same: the outcome is decided on, the next timer is started, and only then
    signals that have come meanwhile are heard. On the other lanes an activity's result is an event of its own, and its
    order among signals never changes.

    For the same reason the workflow's clock is no guide: the time at which a local activity begins, or at which its result
    or a signal beside it comes, may be another one on a replay. What begins when depends on data alone: on the moments that
    timers were set for, on those that activities wrote into their results, and on what signals say.

    For the same reason signals that were held back and others act one by one: whoever waits does what one of them asks for,
    and waits again, before the next is heard. Two that came in different tasks may well be held back together the first
    time. What older code has started hears all at once, as it did then, so that it may go back to it; so does a run of
    which older code has done the first task (`is_serial` is false).
    """

    def __init__(self, *, is_serial: bool) -> None:
        self.is_serial = is_serial
        self._is_deaf = False
        self._waiting: deque[tuple[Callable[[], None], bool]] = deque()
        self._wakes: Callable[[], bool] = _never

    @property
    def waiting(self) -> int:
        """How many signals have come that are not heard yet."""
        return sum(is_signal for _, is_signal in self._waiting)

    def hear(self, apply: Callable[[], None], *, is_signal: bool = True) -> None:
        """Apply a signal, or something else in its turn, now or as soon as it may be heard."""
        self._waiting.append((apply, is_signal))
        self._work_off()

    def hold(self) -> None:
        """Hold signals back from here on: a local activity begins."""
        self._is_deaf = True

    def release_when_idle(self, wakes: Callable[[], bool] | None = None) -> None:
        """Hear again as soon as the caller has begun to wait; call it right before.

        `wakes` says whether the caller goes on by now: then nothing more is heard until it waits again. Without it the caller
        gives no command that depends on a signal before its wait is over.
        """
        asyncio.get_running_loop().call_soon(self._open, wakes or _never)

    def _open(self, wakes: Callable[[], bool]) -> None:
        self._is_deaf = False
        self._wakes = wakes if self.is_serial else _never
        self._work_off()

    def _work_off(self) -> None:
        while self._waiting and not self._is_deaf:
            apply, _ = self._waiting.popleft()
            apply()
            self._is_deaf = self._wakes()


def is_serial_run(*, is_started_so: bool) -> bool:
    """Say whether signals act one by one in this run: it was started so, and no older code has done its first task.

    While workers of two versions are at work, either may get the first task of a run.
    """
    return is_started_so and workflow.patched(SERIAL_PATCH)


def _never() -> bool:
    return False
