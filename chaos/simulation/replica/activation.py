"""Activations: drive the SDK's own workflow instance with the protobuf messages that its core would send."""

# The SDK's core uses these private parts in the same way.
# pyright: reportPrivateUsage=false
# ruff: noqa: SLF001

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.common import Priority, TypedSearchAttributes
from temporalio.worker import UnsandboxedWorkflowRunner
from temporalio.worker._workflow_instance import WorkflowInstance, WorkflowInstanceDetails

from chaos.simulation.replica.history import Command, What
from shared.messages.placement import MESSAGE_WORKFLOW, PACK_WORKFLOW
from shared.temporal.converter import DATA_CONVERTER
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow

NAMESPACE = "default"

_WORKFLOWS: dict[str, type[Any]] = {PACK_WORKFLOW: PackWorkflow, MESSAGE_WORKFLOW: MessageWorkflow}


class RunDetails(Protocol):
    """The constant data of a run."""

    workflow_id: str
    workflow_type: str
    task_queue: str
    run_id: str
    continued_from: str
    task_seconds: float


class WorkflowTaskFailure(Exception):
    """Workflow code raised an error that fails its task; a real server would repeat the task for ever."""


def build_instance(run: RunDetails, started_at: float) -> WorkflowInstance:
    """Build the workflow instance that the SDK builds when a run enters its cache."""
    return UnsandboxedWorkflowRunner().create_instance(describe_instance(run, started_at))


def describe_instance(run: RunDetails, started_at: float) -> WorkflowInstanceDetails:
    """Give what the SDK builds a workflow instance from."""
    moment = datetime.fromtimestamp(started_at, UTC)
    info = workflow.Info(
        attempt=1,
        continued_run_id=run.continued_from or None,
        cron_schedule=None,
        execution_timeout=None,
        first_execution_run_id=run.run_id,
        headers={},
        namespace=NAMESPACE,
        original_execution_run_id=run.run_id,
        parent=None,
        root=None,
        priority=Priority.default,
        raw_memo={},
        retry_policy=None,
        run_id=run.run_id,
        run_timeout=None,
        search_attributes={},
        start_time=moment,
        workflow_start_time=moment,
        task_queue=run.task_queue,
        task_timeout=timedelta(seconds=run.task_seconds),
        typed_search_attributes=TypedSearchAttributes.empty,
        workflow_id=run.workflow_id,
        workflow_type=run.workflow_type,
    )
    return WorkflowInstanceDetails(
        payload_converter_factory=DATA_CONVERTER.payload_converter_class,
        failure_converter_class=DATA_CONVERTER.failure_converter_class,
        interceptor_classes=[],
        defn=workflow._Definition.must_from_class(_WORKFLOWS[run.workflow_type]),
        info=info,
        randomness_seed=0,
        extern_functions={},
        disable_eager_activity_execution=True,
        worker_level_failure_exception_types=[],
        patch_activation_callback=None,
        last_completion_result=cast("Any", None),
        last_failure=None,
    )


def activate(instance: WorkflowInstance, activation: WorkflowActivation) -> list[WorkflowCommand]:
    """Apply an activation to workflow code, and give its commands; raises WorkflowTaskFailure."""
    loop = asyncio.get_running_loop()
    try:
        completion = instance.activate(activation)
    finally:  # the instance is an event loop itself, and unsets the running loop
        asyncio._set_running_loop(loop)
    if completion.HasField("failed"):
        raise WorkflowTaskFailure(completion.failed.failure.message)
    return list(completion.successful.commands)


def get_object(instance: WorkflowInstance) -> Any:
    """Give the workflow object itself, for checks of its state."""
    return cast("Any", instance)._object


def to_timestamp(moment: float) -> Timestamp:
    """Convert a moment, precise to the microsecond."""
    stamp = Timestamp()
    stamp.FromMicroseconds(round(moment * 1e6))
    return stamp


def initialize_job(run: RunDetails, arguments: Sequence[Payload], at: float) -> WorkflowActivationJob:
    """Make the job that begins a run."""
    job = WorkflowActivationJob()
    init = job.initialize_workflow
    init.workflow_type = run.workflow_type
    init.workflow_id = run.workflow_id
    init.attempt = 1
    init.arguments.extend(arguments)
    init.continued_from_execution_run_id = run.continued_from
    init.start_time.CopyFrom(to_timestamp(at))

    return job


def signal_job(name: str, arguments: Sequence[Payload]) -> WorkflowActivationJob:
    """Make the job that delivers a signal."""
    job = WorkflowActivationJob()
    job.signal_workflow.signal_name = name
    job.signal_workflow.input.extend(arguments)
    return job


def timer_job(seq: int) -> WorkflowActivationJob:
    """Make the job that fires a timer."""
    job = WorkflowActivationJob()
    job.fire_timer.seq = seq
    return job


def activity_job(seq: int, resolution: ActivityResolution) -> WorkflowActivationJob:
    """Make the job that resolves an activity."""
    job = WorkflowActivationJob()
    job.resolve_activity.seq = seq
    job.resolve_activity.result.CopyFrom(resolution)
    return job


def query_job(name: str, arguments: Sequence[Payload]) -> WorkflowActivationJob:
    """Make the job that sends a query."""
    job = WorkflowActivationJob()
    job.query_workflow.query_id = "query"
    job.query_workflow.query_type = name
    job.query_workflow.arguments.extend(arguments)
    return job


def completed(payload: Payload) -> ActivityResolution:
    """Make the resolution of an activity that succeeded."""
    resolution = ActivityResolution()
    resolution.completed.result.CopyFrom(payload)
    return resolution


def failed(failure: Failure) -> ActivityResolution:
    """Make the resolution of an activity that failed."""
    resolution = ActivityResolution()
    resolution.failed.failure.CopyFrom(failure)
    return resolution


def application_failure(exc: BaseException) -> Failure:
    """Convert an exception of an activity to a failure."""
    failure = Failure(message=str(exc))
    failure.application_failure_info.type = type(exc).__name__
    return failure


def timeout_failure(timeout_type: int) -> Failure:
    """Make the cause of the failure of an activity that timed out."""
    cause = Failure(message="activity timed out")
    cause.timeout_failure_info.timeout_type = cast("Any", timeout_type)
    return cause


def wrap_failure(cause: Failure, activity: str) -> Failure:
    """Wrap the cause of an activity's failure, as the server does."""
    failure = Failure(message="activity error")
    failure.activity_failure_info.activity_type.name = activity
    failure.cause.CopyFrom(cause)
    return failure


def read_command(command: WorkflowCommand) -> Command:
    """Read a command, each of which causes an event."""
    match command.WhichOneof("variant"):
        case "start_timer":
            timer = command.start_timer
            return Command(What.TIMER_STARTED, timer.seq, _seconds(timer.start_to_fire_timeout))
        case "cancel_timer":
            return Command(What.TIMER_CANCELED, command.cancel_timer.seq)
        case "schedule_activity":
            return Command(What.ACTIVITY_SCHEDULED, command.schedule_activity.seq, command.schedule_activity)
        case "upsert_workflow_search_attributes":
            return Command(What.UPSERTED)
        case "modify_workflow_properties":
            return Command(What.MEMO_CHANGED)
        case "continue_as_new_workflow_execution":
            return Command(What.CONTINUED, 0, command.continue_as_new_workflow_execution)
        case "complete_workflow_execution":
            return Command(What.COMPLETED, 0, command.complete_workflow_execution)
        case other:
            raise WorkflowTaskFailure(f"workflow code gave a command that the simulation does not know: {other}")


def _seconds(duration: Duration) -> float:
    return duration.ToTimedelta().total_seconds()
