"""Ordinary activities: a model of the server's timeouts and retries."""

import asyncio
import math
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import TimeoutType
from temporalio.bridge.proto.workflow_commands import ScheduleActivity

from chaos.simulation.replica import activation

if TYPE_CHECKING:  # the server imports this module, so an import at run time would be circular
    from chaos.simulation.server.run import Run
    from chaos.simulation.server.server import Server


class ActivityTask:
    """One activity of a run, with all its attempts; reports of an attempt that is over are ignored."""

    def __init__(self, server: "Server", run: "Run", scheduled: ScheduleActivity) -> None:
        self.run = run
        self.scheduled = scheduled
        self.seq = scheduled.seq
        self.attempt = 1
        self.request = server.requests.find(run.run_id, scheduled)
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._expire_in("schedule to start", scheduled.schedule_to_start_timeout)
        self._loop.call_later(self._draw_wait(), self._hand_out)

    def is_current(self, attempt: int) -> bool:
        """Say whether the server still waits for an attempt."""
        return attempt == self.attempt and self.run.activities.get(self.seq) is self

    def note_hit(self) -> None:
        """Record that a fault has hit one of its tasks, heartbeats or answers."""
        if self.request is not None:
            self.request.is_hit = True

    def beat(self, attempt: int) -> bool:
        """Record a heartbeat; gives whether the attempt still counts."""
        if not self.is_current(attempt):
            return False
        self._expire_in("heartbeat", self.scheduled.heartbeat_timeout)
        return True

    def end(self, attempt: int, result: Any) -> None:
        """Record that an attempt succeeded."""
        if not self.is_current(attempt):
            return
        self._stop_timers()
        if self.request is not None:
            self.request.take_answer(self.scheduled, result.completed.result)
        self._server.end_activity(self, result)

    def fail(self, attempt: int, cause: Any) -> None:
        """Record that an attempt failed, and retry while the retry policy allows it."""
        if not self.is_current(attempt):
            return
        self._stop_timers()
        if self.request is not None:
            self.request.holder = None
        policy = self.scheduled.retry_policy
        if policy.maximum_attempts and attempt >= policy.maximum_attempts:
            wrapped = activation.wrap_failure(cause, self.scheduled.activity_type)
            self._server.end_activity(self, activation.failed(wrapped))
            return

        self.attempt += 1
        first = policy.initial_interval.ToTimedelta().total_seconds()
        longest = policy.maximum_interval.ToTimedelta().total_seconds() or math.inf
        pause = min(first * 2 ** (attempt - 1), longest)
        self._loop.call_later(pause + self._draw_wait(), self._hand_out)

    def _draw_wait(self) -> float:
        seconds, is_long = self._server.matching.draw_wait()
        if is_long:
            self.note_hit()
        return seconds

    def _hand_out(self) -> None:
        if not self.is_current(self.attempt):
            return
        worker = self._server.matching.pick_worker(queue=self.scheduled.task_queue)
        if worker is None:
            self._loop.call_later(1.0, self._hand_out)
            return

        self._stop_timers()
        self._expire_in("start to close", self.scheduled.start_to_close_timeout)
        self._expire_in("heartbeat", self.scheduled.heartbeat_timeout)
        if self.request is not None:
            self.request.holder = worker
            self.request.held_since = self._loop.time()
        worker.begin_activity(self)

    def _expire_in(self, name: str, span: Duration) -> None:
        """Set one of the timeouts anew, unless it has no span."""
        before = self._timers.pop(name, None)
        if before is not None:
            before.cancel()
        seconds = span.ToTimedelta().total_seconds()
        if seconds:
            self._timers[name] = self._loop.call_later(seconds, self._expire, self.attempt, name)

    def _expire(self, attempt: int, name: str) -> None:
        if not self.is_current(attempt):
            return
        self._server.faults.hits[f"activity timed out, {name}"] += 1
        if name == "schedule to start":  # the server does not try it again
            self.attempt = max(self.scheduled.retry_policy.maximum_attempts, attempt)
        self.fail(self.attempt, activation.timeout_failure(_TIMEOUTS[name]))

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()


_TIMEOUTS = {
    "schedule to start": TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START,
    "start to close": TimeoutType.TIMEOUT_TYPE_START_TO_CLOSE,
    "heartbeat": TimeoutType.TIMEOUT_TYPE_HEARTBEAT,
}
