"""The part of a worker that executes activities: what runs, and what the server is told of it."""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from chaos.simulation.faults import Faults
from chaos.simulation.replica import activation
from chaos.simulation.server.activities import ActivityTask
from chaos.simulation.worker.process import WorkerProcess
from shared.temporal.converter import DATA_CONVERTER


class ActivityWorker:
    """The activities of one worker process; each is executed in a copy of `context`."""

    def __init__(
        self,
        process: WorkerProcess,
        faults: Faults,
        client: Any,
        functions: Mapping[str, Callable[..., Any]],
        context: contextvars.Context,
    ) -> None:
        self._process = process
        self._faults = faults
        self._client = client
        self._functions = functions
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._environments: list[ActivityEnvironment] = []
        self._running: dict[asyncio.Task[Any], ActivityEnvironment] = {}
        self._arriving = 0
        """Number of activities that the server has handed out to this process and that have not begun here."""
        self.is_closing = False

    @property
    def has_activities(self) -> bool:
        """Whether an activity runs here, or is on its way; the SDK waits for both when it ends."""
        return bool(self._running or self._arriving)

    def begin(self, activity: ActivityTask) -> None:
        """Execute one attempt of an activity."""
        environment = ActivityEnvironment(cast("Client", self._client))
        attempt = _Attempt(activity, environment, self._faults)
        environment.on_heartbeat = lambda *_: self._process.send(attempt.beat)
        environment.info = replace(
            environment.info,
            workflow_id=activity.run.workflow_id,
            workflow_run_id=activity.run.run_id,
            attempt=activity.attempt,
        )

        self._arriving += 1
        self._process.send(lambda: self._run(attempt))

    def close(self) -> None:
        """Tell all activities that the worker shuts down, also those that come later."""
        self.is_closing = True
        for environment in self._environments:
            environment.worker_shutdown()

    def hand_back(self) -> None:
        """Cancel what runs, because the drain time is over."""
        for environment in self._running.values():
            environment.cancel(ActivityCancellationDetails(worker_shutdown=True))

    def kill(self) -> None:
        """Cut off what runs, because its process is dead."""
        for task in list(self._running):
            task.cancel()

    def _run(self, attempt: "_Attempt") -> None:
        self._arriving -= 1
        scheduled = attempt.activity.scheduled
        arguments = DATA_CONVERTER.payload_converter.from_payloads(list(scheduled.arguments))
        function = self._functions[scheduled.activity_type]

        self._environments.append(attempt.environment)
        if self.is_closing:
            attempt.environment.worker_shutdown()

        call = self._call(attempt, function, arguments)
        task = self._loop.create_task(call, context=self._context.copy())
        self._running[task] = attempt.environment
        task.add_done_callback(self._running.pop)

    async def _call(self, attempt: "_Attempt", function: Any, arguments: Any) -> None:
        try:
            result = await attempt.environment.run(function, *arguments)
        except asyncio.CancelledError:
            raise
        except Exception as exc:  # noqa: BLE001 — like the SDK, for any error of an activity
            self._process.send(lambda exc=exc: attempt.fail(activation.application_failure(exc)))
        else:
            (payload,) = DATA_CONVERTER.payload_converter.to_payloads([result])
            self._process.send(lambda: attempt.end(activation.completed(payload)))


class _Attempt:
    """One attempt of an activity, and what the server is told of it."""

    def __init__(self, activity: ActivityTask, environment: ActivityEnvironment, faults: Faults) -> None:
        self.activity = activity
        self.environment = environment
        self._number = activity.attempt
        self._faults = faults

    def beat(self) -> None:
        """Tell the server that the attempt is at work."""
        if self._faults.strikes("heartbeat lost"):
            self.activity.note_hit()
        elif not self.activity.beat(self._number):
            self.environment.cancel(ActivityCancellationDetails(not_found=True))

    def end(self, result: Any) -> None:
        """Tell the server the result."""
        if not self._is_answer_lost():
            self.activity.end(self._number, result)

    def fail(self, failure: Any) -> None:
        """Tell the server the failure."""
        if not self._is_answer_lost():
            self.activity.fail(self._number, failure)

    def _is_answer_lost(self) -> bool:
        is_lost = self._faults.strikes("activity answer lost")
        if is_lost:
            self.activity.note_hit()
        return is_lost
