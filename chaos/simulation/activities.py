"""Ordinary activities: a model of the server's timeouts and retries."""

import asyncio
import math
from typing import TYPE_CHECKING, Any

from temporalio.api.enums.v1 import TimeoutType
from temporalio.bridge.proto.workflow_commands import ScheduleActivity

from chaos.simulation import activation
from chaos.simulation.history import Resolution

if TYPE_CHECKING:  # the server imports this module, so an import at run time would be circular
    from chaos.simulation.server import Run, Server


class ActivityTask:
    """One activity of a run, with all its attempts; reports of an attempt that is over are ignored."""

    def __init__(self, server: "Server", run: "Run", request: ScheduleActivity) -> None:
        self.run = run
        self.request = request
        self.seq = request.seq
        self.attempt = 1
        self.details: list[Any] = []
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        self._loop.call_later(server.wait_seconds(), self._hand_out)

    def is_current(self, attempt: int) -> bool:
        """Say whether the server still waits for an attempt."""
        return attempt == self.attempt and self.run.activities.get(self.seq) is self

    def beat(self, attempt: int, details: list[Any]) -> bool:
        """Record a heartbeat; gives whether the attempt still counts."""
        if not self.is_current(attempt):
            return False
        self.details = details
        self._timers[1].cancel()
        self._timers[1] = self._expire_in(self._heartbeat_seconds, TimeoutType.TIMEOUT_TYPE_HEARTBEAT)
        return True

    def end(self, attempt: int, result: Any) -> None:
        """Record that an attempt succeeded."""
        if self.is_current(attempt):
            self._stop_timers()
            self._server.end_activity(self, Resolution(result))

    def fail(self, attempt: int, cause: Any) -> None:
        """Record that an attempt failed, and retry while the retry policy allows it."""
        if not self.is_current(attempt):
            return
        self._stop_timers()
        policy = self.request.retry_policy
        if policy.maximum_attempts and attempt >= policy.maximum_attempts:
            wrapped = activation.wrap_failure(cause, self.request.activity_type)
            self._server.end_activity(self, Resolution(activation.failed(wrapped)))
            return
        self.attempt += 1
        first, most = policy.initial_interval.ToTimedelta(), policy.maximum_interval.ToTimedelta()
        pause = min(first.total_seconds() * 2 ** (attempt - 1), most.total_seconds() or math.inf)
        self._loop.call_later(pause + self._server.wait_seconds(), self._hand_out)

    @property
    def _heartbeat_seconds(self) -> float:
        return self.request.heartbeat_timeout.ToTimedelta().total_seconds() or math.inf

    def _hand_out(self) -> None:
        if not self.is_current(self.attempt):
            return
        worker = self._server.pick_worker()
        if worker is None:
            self._loop.call_later(1.0, self._hand_out)
            return
        whole = self.request.start_to_close_timeout.ToTimedelta().total_seconds()
        self._timers = [
            self._expire_in(whole, TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE),
            self._expire_in(min(self._heartbeat_seconds, whole + 1), TimeoutType.TIMEOUT_TYPE_HEARTBEAT),
        ]
        worker.begin_activity(self)

    def _expire_in(self, seconds: float, timeout: "TimeoutType.ValueType") -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, self._expire, self.attempt, timeout)

    def _expire(self, attempt: int, timeout: "TimeoutType.ValueType") -> None:
        if self.is_current(attempt):
            self._server.faults.hits["activity timed out"] += 1
            name = self.request.activity_type
            self.fail(attempt, activation.timeout_failure(timeout, is_local=True, activity=name))

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
