"""What is overdue is found whatever its encoding, and nothing else is: neither what is held nor what is at work."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client
from temporalio.worker import Worker

from activities import Again, Context, Message, handler
from activities.idle import due_index, overdue
from activities.idle.overdue import COUNTS_MAX, OverdueIndex
from shared.lanes import task_queue
from shared.messages.message import MessageState
from shared.messages.signals import Pause, Resume
from shared.settings import Settings
from shared.telemetry.metrics import OLDEST_OVERDUE
from shared.telemetry.sdk import Telemetry
from shared.temporal.connect import connect
from starter.local.embedded import EmbeddedServer
from tests.conftest import Begin, Serve, Start, wait_until
from tests.support.asleep import start_asleep
from worker.lanes.measurements import measure_overdue
from worker.main import HEARTBEAT
from workflows.keepers import LayoutWorkflow

INDEX_AFTER = timedelta(minutes=1)
MINUTE = 60.0
LATER = timedelta(hours=1)
"""The index is asked as at this time from now: what is due until then is overdue."""


async def test_the_longest_overdue_come_first_and_nobody_else(
    client: Client, settings: Settings, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of more than a page, in a bounded number of calls; what is held or due later is left out."""
    for module in (due_index, overdue):
        monkeypatch.setattr(module, "PAGE", 5)
    queue = task_queue(settings.task_queue_prefix, "long")
    now = datetime.now(UTC)

    async def start(name: str, due_in: float, *, is_paused: bool = False) -> None:
        due_at = now.timestamp() + due_in
        message = MessageState(kind, name, "long", due_at, due_at, is_paused=is_paused)
        await start_asleep(client, queue, message, now.timestamp())

    async def is_indexed() -> bool:
        return (await client.count_workflows(f"Kind = '{kind}'")).count == 28

    await asyncio.gather(*(start(f"m{n:02}", (60 - 58 * 0.9**n) * MINUTE) for n in range(25)))
    await start("new", 5.0)  # the index has no due time of it
    await start("paused", 2 * MINUTE, is_paused=True)
    await start("asleep", 180 * MINUTE)
    await wait_until(is_indexed, "the index knows them")
    index = OverdueIndex(client, queue, INDEX_AFTER)

    found = await index.find_oldest(2, now + LATER)

    assert [one.workflow_id for one in found[:2]] == [f"{kind}:new", f"{kind}:m00"]
    assert abs((found[1].due_at - now).total_seconds() - 4 * MINUTE) < 1
    assert index.calls <= 3 * (COUNTS_MAX + 1)
    before = index.calls
    assert await index.find_oldest(1, now) == []
    assert index.calls - before == 2
    assert await index.find_oldest(1, now + LATER, beyond=LATER) == []


async def test_what_waits_is_overdue_and_what_is_at_work_or_held_is_not(
    client: Client, settings: Settings, serve: Serve, begin: Begin, kind: str
) -> None:
    """While its handler works, while it is paused, and after: the message itself is asked, or its pack."""
    at_work = asyncio.Event()
    is_over = asyncio.Event()

    @handler(kind, lane="medium")
    async def work(message: Message, ctx: Context) -> Again:
        at_work.set()
        await is_over.wait()
        return Again(after=timedelta(minutes=10), tolerance=timedelta(0))

    index = OverdueIndex(client, task_queue(settings.task_queue_prefix, "medium"), INDEX_AFTER)

    async def find(later: timedelta = LATER) -> list[str]:
        return [one.workflow_id for one in await index.find_oldest(1, datetime.now(UTC) + later)]

    async with serve(work, lanes=("medium",)):
        message = await begin(kind, lane="medium")
        await at_work.wait()
        name = message.handle.id
        await wait_until(lambda: _is_indexed(client, name), "the index knows it")
        assert await find() == []
        is_over.set()
        assert await wait_until(lambda: find(2 * LATER), "it waits for its next time") == [name]
        await message.send(Pause())
        await wait_until(lambda: message.has(state="paused"), "it is paused")
        assert await find(2 * LATER) == []
    assert await find(2 * LATER) == []  # nor is a pack asked again so soon in which nothing waits
    await message.send_from_sdk(Resume())
    async with serve(work, lanes=("medium",)):
        assert await wait_until(lambda: find(3 * LATER), "it waits again") == [name]


async def _is_indexed(client: Client, name: str) -> bool:
    return (await client.count_workflows(f"WorkflowId = '{name}'")).count > 0


async def test_without_a_worker_what_the_index_says_counts(
    client: Client, settings: Settings, serve: Serve, begin: Begin, kind: str
) -> None:
    """A pack that nobody serves any more can't say that it is well."""

    @handler(kind)
    async def rest(message: Message, ctx: Context) -> Again:
        return Again(after=timedelta(minutes=10), tolerance=timedelta(0))

    async with serve(rest, lanes=("short",)):
        message = await begin(kind)
        await wait_until(lambda: message.has(version=1), "it has run")
        await wait_until(lambda: _is_indexed(client, message.handle.id), "the index knows it")
    index = OverdueIndex(client, task_queue(settings.task_queue_prefix, "short"), INDEX_AFTER)

    async def find() -> list[str]:
        return [one.workflow_id for one in await index.find_oldest(1, datetime.now(UTC) + LATER)]

    assert await wait_until(find, "it is found") == [message.handle.id]


async def test_one_process_of_a_lane_tells_how_long_its_most_overdue_message_has_waited(
    server: EmbeddedServer, settings: Settings, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of those that are alive; when it leaves, the next one does."""
    monkeypatch.setattr(overdue, "UNINDEXED_EVERY", timedelta(0))
    address = {"TEMPORAL_ADDRESS": server.address}
    client, other = [await connect(settings, address, heartbeat=HEARTBEAT) for _ in range(2)]
    hasty = replace(settings, index_after=timedelta(0))
    telemetry = Telemetry(is_on=True)

    def serve(client: Client, lane: str, identity: str | None = None) -> Worker:
        queue = task_queue(settings.task_queue_prefix, lane)
        return Worker(client, task_queue=queue, workflows=[LayoutWorkflow], identity=identity)

    def read() -> dict[str, float]:
        return {reading.labels["lane"]: reading.value for reading in telemetry.latest.get(OLDEST_OVERDUE.name, [])}

    await start("nobody-knows", lane="long")
    async with serve(client, "short"), serve(client, "long"):
        measuring = asyncio.create_task(
            measure_overdue(client, hasty, ("short", "long"), telemetry, every=timedelta(seconds=0.3))
        )
        async with serve(other, "short", "0@elsewhere"):
            await wait_until(lambda: [*read()] == ["long"], "another one tells of lane short")
            await wait_until(lambda: read()["long"] > 1, "the message waits")
        await wait_until(lambda: read().get("short") == 0, "the other one has left")
        measuring.cancel()
