"""Signal buffer: decides when signals take effect, so that a replayed run decides as it did the first time."""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from activities.server_calls import MARK_SERIAL
from shared.messages.message import SERIAL_BUILD, SERIAL_BUILDS

SERIAL_PATCH, WAKE_PATCH = "serial", "continue at wake"
MARKED_BUILD = " serial"  # end of the build id of older workers, whose runs all began with the mark
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
        build_id = _first_build_id() if is_started_serial else ""
        self._is_marked = build_id.endswith(MARKED_BUILD)
        self._has_own_ids = build_id.endswith(SERIAL_BUILDS)
        self._activities = 0
        is_built_serial = self._is_marked or self._has_own_ids
        may_patch = is_started_serial and not is_built_serial
        self.is_latest = build_id.endswith(SERIAL_BUILD) or (may_patch and workflow.patched(WAKE_PATCH))
        """Whether a pack's run continues as new when it wakes, not before it sleeps."""
        self.is_serial = is_built_serial or self.is_latest or (may_patch and workflow.patched(SERIAL_PATCH))
        """Whether this run applies signals one by one.

        The server keeps with each task the build id of the worker that has done it, and the first one's says what that
        worker could. A patch marker would say it too, but costs two events and a write to the index for each run: it is
        used only in a deployment, where people give build ids as they like.
        """
        self._is_holding = False
        self._waiting: deque[tuple[Callable[[], None], bool]] = deque()
        self._wakes: Callable[[], bool] = _never

    def next_activity_id(self) -> str | None:
        """Give the next activity of a serial run an id that older code does not give: its workers can't replay it.

        The core compares ids with those in the history. None leaves the id to the SDK, as in older runs.
        """
        self._activities += 1
        if not self._has_own_ids:
            return None
        return f"wake-{self._activities}" if self.is_latest else f"serial-{self._activities}"

    def begin(self) -> None:
        """Begin a run; one that an older worker began has the mark first."""
        if self._is_marked:
            self._mark()

    def exclude_older_workers(self) -> None:
        """Call this before each wait: a serial run whose history has no activity yet gets one that marks it."""
        if self._has_own_ids and not self._activities:
            self._mark()

    def _mark(self) -> None:
        activity_id = self.next_activity_id()
        workflow.start_local_activity(MARK_SERIAL, start_to_close_timeout=MARK_TIMEOUT, activity_id=activity_id)

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

    def release_all(self) -> None:
        """Apply all that waits; nothing may wait in a run that ends now."""
        self._open(_never)

    def _open(self, wakes: Callable[[], bool]) -> None:
        self._is_holding = False
        self._wakes = wakes if self.is_serial else _never
        self._work_off()

    def _work_off(self) -> None:
        while self._waiting and not self._is_holding:
            apply, _ = self._waiting.popleft()
            apply()
            self._is_holding = self._wakes()


def _first_build_id() -> str:
    version = workflow.info().get_current_deployment_version()
    return "" if version is None else version.build_id


def _never() -> bool:
    return False
