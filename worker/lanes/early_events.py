"""Keeps events out of a workflow that are there before their task, because a replay would apply them at another time.

A query that finds no cached run makes the SDK's core read the history of the run, which may by now have events whose
task nobody has begun. Core applies them at once (temporalio 1.35; the same in Go: temporalio/sdk-go issue 755), at the
time of the task before, and keeps what the workflow then asks for until their task comes. That task has a later time,
so in a replay the workflow would ask for something else, and no worker could ever go on with it.
"""

from collections.abc import Callable

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

from worker.lanes.runner import WrappingRunner

SPOILED = "this run was asked when something had just happened to it; it begins again from its history"

MILLISECOND = 1_000_000  # in nanoseconds
_WITHOUT_EVENTS = frozenset({"query_workflow", "remove_from_cache"})


class TimelyRunner(WrappingRunner):
    """Runs workflows as another runner does, but each event only with its task.

    The query is answered by what was there before; then the run leaves the cache, and the task replays its history.
    """

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create a run's instance, which gets no event before its task."""
        instance = super().create_instance(det)
        instance.activate = _Gate(instance.activate, self._evict).activate
        return instance


class _Gate:
    """What stands between core and a run's instance."""

    def __init__(
        self, activate: Callable[[WorkflowActivation], WorkflowActivationCompletion], evict: Callable[[str], None]
    ) -> None:
        self._activate = activate
        self._evict = evict
        self._seen_at = 0
        self._seen_length = 0
        self._is_spoiled = False  # core has told of events that the instance has not been given

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Pass an activation on, unless it has events without a task."""
        has_events = any(job.WhichOneof("variant") not in _WITHOUT_EVENTS for job in act.jobs)
        if has_events and self._is_spoiled:
            failed = WorkflowActivationCompletion(run_id=act.run_id)
            failed.failed.failure.message = SPOILED
            return failed

        if has_events and self._is_early(act):
            self._is_spoiled = True
            self._evict(act.run_id)
            nothing = WorkflowActivationCompletion(run_id=act.run_id)
            nothing.successful.SetInParent()
            return nothing

        self._seen_at = act.timestamp.ToNanoseconds()
        self._seen_length = act.history_length
        return self._activate(act)

    def _is_early(self, act: WorkflowActivation) -> bool:
        # a task has a time of its own; several activations of one task have its time, but no more events
        at = act.timestamp.ToNanoseconds()
        has_own_time = at != self._seen_at
        # a server that skips time counts milliseconds, and may begin two tasks in one of them
        is_exact = at % MILLISECOND != 0
        return is_exact and not (act.is_replaying or has_own_time) and act.history_length > self._seen_length
