"""A runner around another one: what every wrapper of it has in common."""

from collections.abc import Sequence
from typing import Any

from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails, WorkflowRunner


class WrappingRunner(WorkflowRunner):
    """Runs workflows as another runner does."""

    def __init__(self, runner: WorkflowRunner) -> None:
        self._runner = runner

    def prepare_workflow(self, defn: Any) -> None:
        """Prepare a workflow class, as the other runner does."""
        self._runner.prepare_workflow(defn)

    def set_worker_level_failure_exception_types(self, types: Sequence[type[BaseException]]) -> None:
        """Pass the types on to the other runner."""
        self._runner.set_worker_level_failure_exception_types(types)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Create a run's instance, as the other runner does."""
        return self._runner.create_instance(det)
