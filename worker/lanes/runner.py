"""A runner around another one: what every wrapper of it has in common."""

from collections.abc import Callable, Sequence
from typing import Any

from temporalio.worker import Worker, WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner


class WrappingRunner(WorkflowRunner):
    """Runs workflows as another runner does."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner
        self._evict: Callable[[str], None] = _miss_worker

    def attach(self, worker: Worker) -> Worker:
        """Learn of the worker that this runner is for; call it before that runs."""
        bridge: Any = worker._bridge_worker  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] — there is no public way to evict a run
        self._evict = bridge._ref.request_workflow_eviction  # noqa: SLF001
        if isinstance(self._runner, WrappingRunner):
            self._runner.attach(worker)
        return worker

    def prepare_workflow(self, defn: Any) -> None:
        """Prepare a workflow class, as the other runner does."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Pass the types on to the other runner."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create a run's instance, as the other runner does."""
        return self._runner.create_instance(det)


def _miss_worker(_: str) -> None:
    raise RuntimeError("the runner has no worker; attach it first")
