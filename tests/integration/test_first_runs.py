"""First runs of messages: those that were started together don't continue as new together, which doubles what waits."""

from collections.abc import AsyncIterator
from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from activities import Again, Context, Message, handler
from shared.messages.envelope import Envelope
from shared.messages.placement import workflow_id
from shared.settings import Settings
from starter.starting.bulk import BulkStarter
from tests.conftest import Serve, wait_until

MESSAGES = 30
CYCLES = 16


async def test_first_runs_differ_in_length(client: Client, settings: Settings, serve: Serve, kind: str) -> None:
    """Each has at least as many cycles as any run, and fewer than twice as many; the runs after it have as many."""

    @handler(kind)
    async def often(message: Message, ctx: Context) -> Again:
        delay = timedelta(0) if message.version + 1 < CYCLES else timedelta(days=1)
        return Again(after=delay, tolerance=timedelta(0))

    names = [workflow_id(kind, f"m{number}") for number in range(MESSAGES)]
    envelopes = [(None, Envelope(kind=kind, id=f"m{number}", lane="short")) for number in range(MESSAGES)]

    async def have_run() -> bool:
        seen = [await client.get_workflow_handle(name).query("status") for name in names]
        return all(status["version"] == CYCLES for status in seen)

    async with serve(often, lanes=("short",)):
        async for _ in BulkStarter(client, settings).start_all(envelopes):
            pass
        await wait_until(have_run, "all have run")

        cycles = [[count async for count in count_cycles(client, name)] for name in names]

    maximum = settings.cycles_per_run
    firsts = {runs[-1] for runs in cycles}
    assert firsts <= set(range(maximum, 2 * maximum))
    assert len(firsts) >= 3
    assert all(count == maximum for runs in cycles for count in runs[1:-1])


async def count_cycles(client: Client, name: str) -> AsyncIterator[int]:
    """Count the cycles in each run of a message, the last run first."""
    run_id: str | None = (await client.get_workflow_handle(name).describe()).run_id
    while run_id:
        before = ""
        count = 0
        async for event in client.get_workflow_handle(name, run_id=run_id).fetch_history_events():
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                before = event.workflow_execution_started_event_attributes.continued_execution_run_id
            count += event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        yield count
        run_id = before
