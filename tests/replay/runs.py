"""Runs: what the server wrote down of each run that a message, or a pack of them, has lived through."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistory, WorkflowHistoryEventFilterType

from starter.starting.queries import query_or_none

BUSY = ("asleep", "running", "paused", "parked", "strays")
"""What a pack has that is not at rest."""


async def follow_runs(
    workflow: WorkflowHandle[Any, Any], client: Client, run_id: str, histories: dict[str, WorkflowHistory]
) -> None:
    """Keep the history of each run as soon as it has ended: a pack deletes it with its next batch."""
    only_end = WorkflowHistoryEventFilterType.CLOSE_EVENT
    while run_id:
        run = client.get_workflow_handle(workflow.id, run_id=run_id)
        *_, end = [e async for e in run.fetch_history_events(wait_new_event=True, event_filter_type=only_end)]
        histories[run_id] = await run.fetch_history()
        run_id = end.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


async def wait_at_rest(pack: WorkflowHandle[Any, Any], before: dict[str, WorkflowHistory]) -> WorkflowHistory:
    """Wait until all messages of a pack are over and it does nothing any more; gives the history of its last run."""
    while True:
        if (overview := await query_or_none(pack, "overview")) is None:  # a busy machine
            continue
        history = await pack.fetch_history()
        start = history.events[0].workflow_execution_started_event_attributes
        is_whole = start.continued_execution_run_id in ("", *before)
        if is_whole and not any(map(overview.get, BUSY)) and _is_resting(history.events):
            return history
        await asyncio.sleep(0.1)


def has_begun(history: WorkflowHistory) -> bool:
    """Tell whether there is something to replay: for a run that waits for its first task a replayer waits for ever."""
    return count_types(history.events)["WORKFLOW_TASK_COMPLETED"] > 0


def count_types(events: Iterable[HistoryEvent]) -> Counter[str]:
    """Count events by the name of their type."""
    return Counter(EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in events)


def _is_resting(events: Iterable[HistoryEvent]) -> bool:
    """Tell whether everything that was begun in a run is over, and the run is not."""
    count = count_types(events)
    task_ends = sum(count[f"WORKFLOW_TASK_{end}"] for end in ("COMPLETED", "FAILED", "TIMED_OUT"))
    activity_ends = sum(count[f"ACTIVITY_TASK_{end}"] for end in ("COMPLETED", "FAILED", "TIMED_OUT"))
    return (
        count["WORKFLOW_TASK_SCHEDULED"] == task_ends > 0
        and count["TIMER_STARTED"] == count["TIMER_FIRED"] + count["TIMER_CANCELED"]
        and count["ACTIVITY_TASK_SCHEDULED"] == activity_ends
        and count["WORKFLOW_EXECUTION_CONTINUED_AS_NEW"] == 0
    )
