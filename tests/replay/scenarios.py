"""Lives of a message that are recorded once and replayed for ever: each walks through different commands.

`python -m tests.replay.scenarios` runs them on a fresh embedded server and writes histories and fingerprints.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle, WorkflowHistory

from activities import Again, Context, Done, Message, Reject, handler
from activities.registry import Registry
from shared.envelope import Envelope
from shared.settings import Settings
from shared.signals import Pause, PullForward, Reprioritize, Reschedule, Resume, Revise, RunNow, Stop, to_epoch
from starter.bulk import BulkStarter
from starter.embedded import EmbeddedOptions, find_free_port, run_embedded
from worker.run import WorkerPlan, run_workers

HERE = Path(__file__).parent
HISTORIES = HERE / "histories"
FINGERPRINTS = HERE / "fingerprints.json"
SETTINGS = Settings(
    task_queue_prefix="replay", cycles_per_run=2, sandbox=True, workflow_task_timeout=timedelta(seconds=10)
)
HOUR = timedelta(hours=1)
AWHILE = timedelta(seconds=2)  # more than the second that the server leaves between two runs

COMMANDS = {
    EventType.EVENT_TYPE_TIMER_STARTED: "start timer",
    EventType.EVENT_TYPE_TIMER_CANCELED: "cancel timer",
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "schedule activity",
    EventType.EVENT_TYPE_MARKER_RECORDED: "record marker",
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: "upsert search attributes",
    EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED: "upsert memo",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continue as new",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "complete",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: "(signalled)",
}


@handler("replay", max_attempts=2, backoff=timedelta(seconds=1))
async def act(message: Message, ctx: Context) -> Again | Done | Reject:
    """Do what the payload lists for this version, the last entry for all later ones."""
    steps: list[str] = message.payload
    match steps[min(message.version, len(steps) - 1)]:
        case "again":
            return Again(after=AWHILE, tolerance=timedelta(0))
        case "sleep":
            return Again(after=HOUR, earliest=timedelta(0), tolerance=timedelta(0))
        case "medium":
            return Again(after=AWHILE, lane="medium", tolerance=timedelta(0))
        case "fail" if ctx.attempt == 1:
            raise RuntimeError("once")
        case "reject":
            return Reject("unfit")
        case _:
            return Done()


Life = Callable[["WorkflowHandle[Any, Any]"], Awaitable[None]]


async def loop(_: WorkflowHandle[Any, Any]) -> None:
    """Three versions in two runs; nothing happens from outside."""


async def steered(message: WorkflowHandle[Any, Any]) -> None:
    """Every signal once, each applied before the next is sent."""
    await until(message, version=1)
    await message.signal("pause", Pause())
    await until(message, state="paused")
    await message.signal("resume", Resume())
    await until(message, state="active")
    await message.signal("reprioritize", Reprioritize(1))
    await until(message, priority=1)
    later = (datetime.now(UTC) + 2 * HOUR).isoformat()
    await message.signal("reschedule", Reschedule(later))
    await until(message, due_at_epoch=to_epoch(later))
    await message.signal("revise", Revise(["sleep"], source="topic/0", offset=1))
    await until(message, revision=1)
    await message.signal("run_now", RunNow())
    await until(message, version=2)
    due_at = datetime.fromtimestamp((await status(message))["due_at_epoch"], UTC)
    await message.signal("pull_forward", PullForward(due_at.isoformat()))
    await until(message, version=3)
    await message.signal("stop", Stop())


async def parked(message: WorkflowHandle[Any, Any]) -> None:
    """Rejected, repaired, replayed."""
    await until(message, state="parked")
    await message.signal("revise", Revise(["done"]))
    await until(message, revision=1)
    await message.signal("run_now", RunNow())


LIVES: dict[str, tuple[str, list[str], Life]] = {
    "loop": ("short", ["again", "again", "done"], loop),
    "loop_medium": ("medium", ["again", "fail", "done"], loop),
    "lane_move": ("short", ["medium", "again", "done"], loop),
    "failing": ("short", ["fail", "done"], loop),
    "parked": ("short", ["reject"], parked),
    "steered": ("short", ["sleep"], steered),
}


async def status(message: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    """Ask the message itself."""
    return await message.query("status", result_type=dict[str, Any])


async def until(message: WorkflowHandle[Any, Any], **expected: Any) -> None:
    """Wait until the message's status shows the expected values."""
    while True:
        found = await status(message)
        if all(found[key] == value for key, value in expected.items()):
            return
        await asyncio.sleep(0.1)


async def live(client: Client, name: str, suffix: str = "") -> list[WorkflowHistory]:
    """Let a message live the named life and give the histories of its runs, first to last."""
    lane, steps, life = LIVES[name]
    envelope = Envelope(kind="replay", id=name + suffix, lane=lane, payload=steps)
    receipt = await BulkStarter(client, SETTINGS).start(envelope, None)
    message = client.get_workflow_handle(receipt.workflow_id)
    await life(message)
    await message.result()
    return [history async for history in _runs(client, receipt.workflow_id, receipt.run_id)]


async def _runs(client: Client, workflow_id: str, run_id: str) -> AsyncIterator[WorkflowHistory]:
    while run_id:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        yield history
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


def fingerprint(histories: list[WorkflowHistory]) -> list[list[str]]:
    """Give the commands of every run in order; workflow tasks, whose number varies with timing, are left out."""
    return [[_name(event) for event in history.events if event.event_type in COMMANDS] for history in histories]


def _name(event: HistoryEvent) -> str:
    name = COMMANDS[event.event_type]
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
        return f"({event.workflow_execution_signaled_event_attributes.signal_name})"
    return name


async def serve_lives(client: Client, stopping: asyncio.Event) -> None:
    """Run the workers that these lives need."""
    plan = WorkerPlan(settings=SETTINGS, registry=Registry([("replay", act)]), drain=timedelta(seconds=2))
    await run_workers(client, plan, stopping)


async def record() -> None:
    """Live all lives on a fresh server and write them down."""
    HISTORIES.mkdir(exist_ok=True)
    fingerprints: dict[str, list[list[str]]] = {}
    stopping = asyncio.Event()
    with tempfile.TemporaryDirectory() as folder:
        options = EmbeddedOptions(data=Path(folder), port=find_free_port(), ui_port=None, slim=False)
        async with run_embedded(options) as server:
            client = await server.connect()
            serving = asyncio.create_task(serve_lives(client, stopping))
            try:
                for name in LIVES:
                    histories = await live(client, name)
                    fingerprints[name] = fingerprint(histories)
                    for number, history in enumerate(histories):
                        (HISTORIES / f"{name}-{number}.json").write_text(history.to_json() + "\n")
            finally:
                stopping.set()
                await serving
    FINGERPRINTS.write_text(json.dumps(fingerprints, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
    sys.stdout.flush()
    os._exit(0)  # temporalio may abort at interpreter exit: github.com/temporalio/sdk-python/issues/300
