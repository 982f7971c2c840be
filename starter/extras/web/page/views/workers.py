"""Workers by lane, what the doctor finds about lanes, what stands still, and the bridges that are set."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from temporalio.api.worker.v1 import WorkerHeartbeat

from activities.idle.capacity import is_fresh
from shared.lanes import LANES
from starter.bridge.status_document import BridgeStatus, fetch_status
from starter.extras.web.documents import Installation, find_api
from starter.extras.web.page.operations_page import find_page
from starter.extras.web.page.snapshot import read_part
from starter.extras.web.page.template import render
from starter.extras.web.requests import check_unlimited, read_query
from starter.insight.doctor.checks import worst_first
from starter.insight.doctor.lanes import LaneWorkers
from starter.steering.status.failing_workflows import FailingWorkflow, list_standstills
from starter.steering.status.web_ui import find_page as find_workflow_page

STANDSTILLS_MAX = 20
WORKERS_MAX = 200


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker process on one lane."""

    lane: str
    identity: str
    build: str
    seen_at: datetime
    is_alive: bool
    busy: int
    slots: int


async def show_workers(request: Request) -> Response:
    """Show them."""
    read_query(request, ())
    check_unlimited(request)
    api = find_api(request)
    page = find_page(request)
    addresses = api.settings.page_bridges
    lanes, standstills, bridges = await asyncio.gather(
        page.snapshots.lanes.read(),
        read_part(find_standstills(api)),
        asyncio.gather(*(read_part(fetch_status(each)) for each in addresses)),
    )
    findings, serving = lanes.value or ([], {})
    rows = list_workers(serving)

    return render(
        request,
        "workers.html",
        problem=lanes.problem,
        findings=worst_first(findings),
        workers=rows[:WORKERS_MAX],
        hidden=max(0, len(rows) - WORKERS_MAX),
        standstills=standstills.value,
        standstills_problem=standstills.problem,
        maximum=STANDSTILLS_MAX,
        ui=page.ui_address,
        workflow_page=partial(find_workflow_page, api.client.namespace),
        bridges=[
            (address, *_sort_out(part.value, part.problem)) for address, part in zip(addresses, bridges, strict=True)
        ],
        server=api.client.service_client.config.target_host,
    )


def _sort_out(answer: BridgeStatus | str | None, problem: str) -> tuple[BridgeStatus | None, str]:
    """Give a bridge's status, or the sentence that stands in its place."""
    return (answer, "") if isinstance(answer, BridgeStatus) else (None, answer or problem)


async def find_standstills(api: Installation) -> list[FailingWorkflow]:
    """Give the first workflows whose task fails over and over."""
    found = list[FailingWorkflow]()
    async for failing in list_standstills(api.client, api.settings.task_queue_prefix):
        found.append(failing)
        if len(found) >= STANDSTILLS_MAX:
            break
    return found


def list_workers(serving: Mapping[str, LaneWorkers]) -> Sequence[WorkerRow]:
    """Give a row for each worker, by lane; those seen last come first."""
    rows = [_to_row(lane, beat) for lane, workers in serving.items() for beat in workers.beats]
    return sorted(rows, key=lambda row: (list(LANES).index(row.lane), not row.is_alive, row.identity))


def _to_row(lane: str, beat: WorkerHeartbeat) -> WorkerRow:
    slots = beat.activity_task_slots_info
    busy = slots.current_used_slots
    return WorkerRow(
        lane=lane,
        identity=beat.worker_identity,
        build=beat.deployment_version.build_id or "unknown",
        seen_at=beat.heartbeat_time.ToDatetime(UTC),
        is_alive=is_fresh(beat),
        busy=busy,
        slots=busy + max(slots.current_available_slots, 0),
    )
