"""Signal buffer: decides when signals take effect, so that a replayed run decides as it did the first time."""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from activities.server_calls import MARK_SERIAL
from shared.messages.message import SERIAL_BUILD

SERIAL_PATCH = "serial"
MARK_TIMEOUT = timedelta(seconds=10)


class SignalBuffer:
    """Holds signals back while a local activity runs, until its outcome has been decided on.

    The SDK core sometimes records a local activity's result in one task and gives it to the workflow in the next: when
    the activity lasts for four fifths of the task timeout, and when somebody queries the workflow meanwhile. A signal
    in between comes before the result the first time, and after it on replay. So here the order is always the same:
    the outcome is decided on, the next timer is started, and then the signals that came meanwhile are applied. On
    other lanes an activity's result is an event of its own, whose order among signals never changes.

    For the same reason nothing depends on the workflow's clock: the time at which a local activity begins, or its
    result or a signal comes, may differ on replay. What begins when depends on data alone: on the moments of timers,
    on those that activities wrote into their results, and on what signals say.

    For the same reason all signals are applied one by one: the waiting code does what one signal asks for, and waits
    again, before the next is applied. A run that older code started, or whose first task older code has done, applies
    all signals at once, as that code does, so that workers may go back to it (`is_serial` is false).
    """

    def __init__(self, *, is_started_serial: bool) -> None:
        self._is_built_serial = is_started_serial and _is_serial_build()
        self.is_serial = self._is_built_serial or (is_started_serial and workflow.patched(SERIAL_PATCH))
        """Whether this run applies signals one by one.

        The server keeps with each task the build id of the worker that has done it, and the first one's says what that
        worker could. A patch marker would say it too, but costs two events and a write to the index for each run: it is
        used only in a deployment, where people give build ids as they like.
        """
        self._is_holding = False
        self._waiting: deque[tuple[Callable[[], None], bool]] = deque()
        self._wakes: Callable[[], bool] = _never

    def exclude_older_workers(self) -> None:
        """Begin a serial run with an activity that older code does not know: its workers can't continue the run."""
        if self._is_built_serial:
            workflow.start_local_activity(MARK_SERIAL, start_to_close_timeout=MARK_TIMEOUT)

    @property
    def waiting(self) -> int:
        """The number of signals that have come and are not applied yet."""
        return sum(is_signal for _, is_signal in self._waiting)

    def hear(self, apply: Callable[[], None], *, is_signal: bool = True) -> None:
        """Apply a signal, or another change in its turn, now or once the buffer is released."""
        self._waiting.append((apply, is_signal))
        self._work_off()

    def hold(self) -> None:
        """Hold signals back from now on, because a local activity begins."""
        self._is_holding = True

    def release_when_idle(self, wakes: Callable[[], bool] | None = None) -> None:
        """Release signals as soon as the caller has begun to wait; call this right before the wait.

        `wakes` returns whether the caller will go on: then no more signals are applied until it waits again. A caller
        without `wakes` gives no command that depends on a signal before its wait is over.
        """
        asyncio.get_running_loop().call_soon(self._open, wakes or _never)

    def _open(self, wakes: Callable[[], bool]) -> None:
        self._is_holding = False
        self._wakes = wakes if self.is_serial else _never
        self._work_off()

    def _work_off(self) -> None:
        while self._waiting and not self._is_holding:
            apply, _ = self._waiting.popleft()
            apply()
            self._is_holding = self._wakes()


def _is_serial_build() -> bool:
    version = workflow.info().get_current_deployment_version()
    return version is not None and version.build_id.endswith(SERIAL_BUILD)


def _never() -> bool:
    return False
