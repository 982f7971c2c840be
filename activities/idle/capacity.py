"""Capacity: how many slots the workers of a lane have free, by their heartbeats, and how much waits for them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus
from temporalio.api.worker.v1 import WorkerHeartbeat
from temporalio.api.workflowservice.v1 import ListWorkersRequest
from temporalio.client import Client

from shared.keepers.capacity import CAPACITY_MEMO, WorkerCapacity, capacity_workflow_id, read_measured
from shared.temporal.connect import CALL_TIMEOUT, describe_queue
from shared.temporal.deployment import find_taking, to_version
from shared.temporal.workflow_calls import read_memo

FRESH = timedelta(seconds=20)  # age of a heartbeat after which nobody knows whether its worker is still there


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots of all workers of a lane together; `reported_at` is the time of the last heartbeat."""

    all: int
    free: int
    reported_at: datetime


class Capacity:
    """Reads what a task queue's workers can take. Raises RPCError while the server does not answer."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue

    async def read_slots(self) -> Slots:
        """Add up the slots of the kind that each worker has fewest free of.

        Those of workflow tasks fill when the processor is busy, those of activities when handlers are slow.
        """
        beats = await self._find_heartbeats()
        slots = [
            min(
                (beat.workflow_task_slots_info, beat.activity_task_slots_info),
                key=lambda each: each.current_available_slots,
            )
            for beat in beats
        ]
        free = sum(max(each.current_available_slots, 0) for each in slots)
        reported_at = max(
            (beat.heartbeat_time.ToDatetime(UTC) for beat in beats), default=datetime.fromtimestamp(0, UTC)
        )

        return Slots(free + sum(each.current_used_slots for each in slots), free, reported_at)

    async def read_measured(self) -> list[WorkerCapacity | None]:
        """Give the highest rate that each live worker process has reported, None for one without a report."""
        memo = await read_memo(self._client, capacity_workflow_id(self._queue)) or {}
        reported = read_measured(memo.get(CAPACITY_MEMO, {}))
        return [reported.get(identity) for identity in await self.find_identities()]

    async def read_backlog(self) -> int:
        """Count the tasks that wait for a worker; a task that goes straight to a waiting worker never counts."""
        kinds = [TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY]
        waiting = 0
        for kind in kinds:
            described = await describe_queue(self._client, self._queue, kind, report_stats=True)
            waiting += described.stats.approximate_backlog_count
        return waiting

    async def find_identities(self) -> set[str]:
        """Give the identity of each live worker process that gets tasks."""
        return {beat.worker_identity for beat in await self._find_heartbeats()}

    async def _find_heartbeats(self) -> list[WorkerHeartbeat]:
        """Give the last heartbeat of each worker that gets tasks; with versioning, some workers poll and get none."""
        beats = [beat async for beat in self.read_heartbeats() if is_fresh(beat)]
        if any(beat.deployment_version.deployment_name for beat in beats):
            taking = find_taking((await describe_queue(self._client, self._queue)).versioning_info)
            beats = [beat for beat in beats if to_version(beat.deployment_version) in taking]
        return beats

    async def read_heartbeats(self) -> AsyncIterator[WorkerHeartbeat]:
        """Give the last heartbeat of each worker that has not shut down; the server forgets it after some minutes."""
        query = f"TaskQueue='{self._queue}'"
        request = ListWorkersRequest(namespace=self._client.namespace, page_size=200, query=query)

        while True:
            answer = await self._client.workflow_service.list_workers(request, timeout=CALL_TIMEOUT)
            for worker in answer.workers_info:
                beat = worker.worker_heartbeat
                if beat.task_queue == self._queue and beat.status == WorkerStatus.WORKER_STATUS_RUNNING:
                    yield beat
            if not answer.next_page_token:
                return
            request.next_page_token = answer.next_page_token


def is_fresh(beat: WorkerHeartbeat) -> bool:
    """Return whether a heartbeat is recent enough to count its worker as live."""
    return beat.heartbeat_time.ToDatetime(UTC) >= datetime.now(UTC) - FRESH
