"""Runs the workers of one process: one per lane, until the order to drain."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities.admission.gates import Gates
from activities.admission.limits import Limits
from activities.api.resources import Resources
from activities.calls.batch import BatchDispatch
from activities.calls.dispatch import Dispatch
from activities.http.client import HttpClient
from activities.idle.pull import PullActivities
from activities.registry import Registry
from activities.reporting import OutcomeEvents
from activities.server_calls import forward_signals, grow_packs, open_signals, set_own_priority
from shared.keepers.limits import SHARDS, limits_queue
from shared.lanes import LANES, task_queue
from shared.settings import Settings
from shared.telemetry.sdk import Telemetry
from shared.temporal.encryption import build_worker_converter
from worker.deployment import build_arguments, version_arguments, watch_deployment
from worker.lanes.cache import Cache
from worker.lanes.early_events import TimelyRunner
from worker.lanes.evictions import Evictions, ReleasingRunner
from worker.lanes.measurements import measure_overdue, report_throughput
from worker.lanes.profiles import PROFILES, Profile
from workflows.keepers import CapacityWorkflow, GatesWorkflow, IdleWorkflow, LayoutWorkflow
from workflows.limits_keeper import LimitsWorkflow
from workflows.message_workflow import MessageWorkflow
from workflows.pack_workflow import PackWorkflow

logger = logging.getLogger(__name__)

CALLS_SLOTS = 10_000  # a question that waits for a slot would count as lost; each only holds a coroutine
CALLS_POLLERS = 5
LIMITS_POLLERS = 4  # half of them for what this process counts already
LIMITS_STICKY = timedelta(seconds=2)  # after it another process counts on, when one was killed
HEARTBEAT_THROTTLE = timedelta(seconds=2)

# temporalio takes a workflow task of more than two seconds for a deadlock, and may never let go of its run after that;
# it has no option for this (temporalio/sdk-python#1050). Ten thousand signals that waited for a worker take as long on
# a busy machine.
DEADLOCK_SECONDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What one worker process is to do, decided once in `main`."""

    settings: Settings
    registry: Registry
    lanes: Sequence[str] = tuple(LANES)
    drain: timedelta = timedelta(seconds=30)
    telemetry: Telemetry = field(default_factory=lambda: Telemetry(is_on=False))
    profiles: Mapping[str, Profile] = field(default_factory=lambda: PROFILES)


def _build_client(client: Client) -> Client:
    config = client.config(active_config=True)
    config["data_converter"] = build_worker_converter(config["data_converter"])
    return Client(**config)


def _build_runner(plan: WorkerPlan) -> WorkflowRunner:
    return SandboxedWorkflowRunner() if plan.settings.sandbox else UnsandboxedWorkflowRunner()


def _build_limits_worker(client: Client, plan: WorkerPlan) -> Worker:
    """Build the worker that counts limits: on its own task queue, because calls that wait may hold a lane's slots."""
    runner = TimelyRunner(_build_runner(plan))
    worker = Worker(
        _build_client(client),
        task_queue=limits_queue(plan.settings.task_queue_prefix),
        workflows=[LimitsWorkflow],
        workflow_runner=runner,
        max_cached_workflows=SHARDS,
        max_concurrent_workflow_tasks=SHARDS,
        max_concurrent_workflow_task_polls=LIMITS_POLLERS,
        sticky_queue_schedule_to_start_timeout=LIMITS_STICKY,
        graceful_shutdown_timeout=timedelta(0),
        **version_arguments(plan.settings),
    )
    return runner.attach(worker)


def _build_worker(
    client: Client,
    plan: WorkerPlan,
    lane: str,
    *,
    dispatch: Dispatch,
    batches: BatchDispatch,
    evictions: Evictions,
    cache: Cache,
) -> Worker:
    profile = plan.profiles[lane]
    runner = TimelyRunner(ReleasingRunner(_build_runner(plan), evictions.note, cache))
    worker = Worker(
        _build_client(client),
        task_queue=task_queue(plan.settings.task_queue_prefix, lane),
        workflows=[MessageWorkflow, PackWorkflow, LayoutWorkflow, IdleWorkflow, GatesWorkflow, CapacityWorkflow],
        activities=[
            dispatch.run_handler,
            batches.run_batch,
            set_own_priority,
            forward_signals,
            grow_packs,
            open_signals,
            PullActivities(plan.telemetry).pull_ahead,
        ],
        workflow_runner=runner,
        max_cached_workflows=max(plan.settings.cached_workflows or profile.cached_workflows, profile.workflow_slots),
        max_concurrent_workflow_tasks=profile.workflow_slots,
        max_concurrent_activities=profile.activity_slots,
        max_concurrent_workflow_task_polls=profile.workflow_pollers,
        max_concurrent_activity_task_polls=profile.activity_pollers,
        nonsticky_to_sticky_poll_ratio=profile.nonsticky_to_sticky_poll_ratio,
        sticky_queue_schedule_to_start_timeout=profile.sticky_timeout,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=plan.drain,
        **version_arguments(plan.settings),
    )

    return runner.attach(worker)


def _build_calls_worker(client: Client, plan: WorkerPlan, batches: BatchDispatch) -> Worker:
    """Build the worker on which packs ask for the calls that are in flight in this process.

    It belongs to no deployment: the server would give its tasks to the workers of whatever version is current.
    """
    return Worker(
        _build_client(client),
        task_queue=batches.queue,
        activities=[batches.await_calls],
        max_concurrent_activities=CALLS_SLOTS,
        max_concurrent_activity_task_polls=CALLS_POLLERS,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=timedelta(0),  # it ends when the drain time is over, or its calls are
        **build_arguments(plan.settings),
    )


def _allow_long_tasks(worker: Worker) -> None:
    workflows: Any = worker._workflow_worker  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] — see DEADLOCK_SECONDS
    workflows._deadlock_timeout_seconds = DEADLOCK_SECONDS  # noqa: SLF001


async def run_workers(
    client: Client,
    plan: WorkerPlan,
    stopping: asyncio.Event,
    announce: Callable[[Sequence[Worker]], None] = lambda _: None,
) -> None:
    """Serve the plan's lanes until `stopping` is set, then drain: no new work, handlers at work may finish.

    What has not finished when the drain time is over is handed back and runs again elsewhere. `announce` gets the
    workers as soon as they start. A worker that fails for good sets `stopping`, so that all lanes drain at once, and
    its error is raised.
    """
    async with HttpClient(plan.settings) as http, Resources() as resources, contextlib.AsyncExitStack() as stack:
        has_topic = plan.settings.outcomes_topic
        events = await stack.enter_async_context(OutcomeEvents(plan.settings)) if has_topic else None
        prefix = plan.settings.task_queue_prefix
        gates = Gates(prefix)
        limits = Limits(prefix)

        if any(each.limit is not None and not each.limit.is_per_process for each in plan.registry.values()):
            await stack.enter_async_context(_build_limits_worker(client, plan))
            stack.push_async_callback(limits.close)

        given = (plan.registry, plan.settings, http.get_session, gates, limits, plan.telemetry)
        dispatch = Dispatch(*given, events=events, resources=resources)
        batches = BatchDispatch(dispatch)
        evictions = Evictions()
        cache = Cache(plan.settings.cached_bytes, plan.telemetry)
        await stack.enter_async_context(_build_calls_worker(client, plan, batches))

        workers = [
            _build_worker(client, plan, lane, dispatch=dispatch, batches=batches, evictions=evictions, cache=cache)
            for lane in plan.lanes
        ]
        for worker in workers:
            _allow_long_tasks(worker)
            await stack.enter_async_context(worker)

        logger.info("worker started", extra={"action": "worker_started", "lanes": ",".join(plan.lanes)})
        announce(workers)
        works = (
            report_throughput(client, prefix, plan.lanes, dispatch.calls),
            watch_deployment(client, plan.settings),
            measure_overdue(client, plan.settings, plan.lanes, plan.telemetry),
            evictions.report(client),
            batches.left_runs.delete_when_due(client),
        )
        background = [asyncio.create_task(work) for work in works]

        try:
            await stopping.wait()
        finally:
            stopping.set()
            for task in background:
                task.cancel()
            await _drain(workers, batches, plan.drain.total_seconds())

    logger.info("worker stopped", extra={"action": "worker_stopped"})


async def _drain(workers: Sequence[Worker], batches: BatchDispatch, seconds: float) -> None:
    logger.info("worker draining", extra={"action": "worker_draining", "seconds": seconds})
    await batches.drain()
    await asyncio.gather(*(worker.shutdown() for worker in workers), batches.finish(seconds))
