"""The due index: the earliest due that may run ahead of time, whatever else sleeps there, in few calls."""

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes

from activities.idle import due_index
from activities.idle.due_index import CALLS_MAX, DueIndex
from shared.errors import ServerUnreachable
from shared.lanes import task_queue
from shared.messages.message import MessageState
from shared.messages.placement import PACK_WORKFLOW, pack_workflow_id
from shared.settings import Settings
from shared.temporal.search_attributes import DUE_AT, EARLIEST_AT, pack_attributes_at_start
from starter.local.embedded import EmbeddedOptions, run_embedded
from starter.local.supervised_process import find_free_port
from tests.conftest import wait_until
from tests.support.asleep import start_asleep

HOUR = 3600.0


class Field:
    """Messages that sleep on a task queue of their own; no worker is needed for that."""

    def __init__(self, client: Client, settings: Settings, kind: str) -> None:
        self.client = client
        self.queue = task_queue(settings.task_queue_prefix, "short")
        self.kind = kind
        self.now = datetime.now(UTC).replace(microsecond=0)

    async def sow(self, name: str, due_in: float, earliest_in: float = -1.0, **state: Any) -> None:
        """Let a message sleep that is due in some seconds and may run ahead of time in some seconds."""
        now = self.now.timestamp()
        message = MessageState(self.kind, name, "short", now + due_in, now + earliest_in, **state)
        await start_asleep(self.client, self.queue, message, now)

    async def sow_pack(self, index: int, due_in: float) -> None:
        """Let a pack sleep whose first message is due in some seconds."""
        moment = self.now + timedelta(seconds=due_in)
        times = [SearchAttributePair(DUE_AT, moment), SearchAttributePair(EARLIEST_AT, self.now - timedelta(seconds=1))]
        await self.client.start_workflow(
            PACK_WORKFLOW,
            {},
            id=pack_workflow_id(self.kind, index),
            task_queue=self.queue,
            search_attributes=TypedSearchAttributes([*pack_attributes_at_start(self.kind, "short"), *times]),
        )

    async def is_indexed(self, count: int) -> bool:
        """Tell whether the index knows them all."""
        return (await self.client.count_workflows(f"Kind = '{self.kind}'")).count == count

    def index(self) -> DueIndex:
        """Give the index of the task queue."""
        return DueIndex(self.client, self.queue)


@pytest.fixture
def field(client: Client, settings: Settings, kind: str) -> Field:
    """An empty field."""
    return Field(client, settings, kind)


async def find(index: DueIndex, field: Field, wanted: int) -> list[str]:
    """Look until something is found; each look makes `CALLS_MAX` calls at most. Gives the names."""
    for _ in range(10):
        before = index.calls
        found = await index.find_first(wanted, field.now)
        assert index.calls - before <= CALLS_MAX
        if found:
            return [sleeping.workflow_id.partition(":")[2] or sleeping.workflow_id for sleeping in found]
    pytest.fail("nothing was found in ten looks")


async def test_the_earliest_due_come_first(field: Field) -> None:
    """Messages and packs alike, however far ahead: none that may not run yet, that is due already or that is held."""
    await asyncio.gather(
        field.sow("b", 5 * HOUR),
        field.sow("a", 4 * HOUR),
        field.sow("far", 400 * HOUR),
        field.sow_pack(7, 4.5 * HOUR),
        field.sow("not-yet", 3 * HOUR, earliest_in=2 * HOUR),
        field.sow("overdue", -HOUR),
        field.sow("paused", 3 * HOUR, is_paused=True),
        field.sow("parked", 3 * HOUR, parked_reason="gone"),
    )
    await wait_until(lambda: field.is_indexed(8), "the index knows them")

    assert await find(field.index(), field, 3) == ["a", f"{field.kind}~7", "b"]
    assert await find(field.index(), field, 50) == ["a", f"{field.kind}~7", "b", "far"]


async def test_a_crowd_is_narrowed_down(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """More are due in one second than a page holds twice over: few calls find the first ones all the same."""
    monkeypatch.setattr(due_index, "PAGE", 40)
    chance = random.Random(7)
    dues = {f"m{n}": HOUR + chance.random() for n in range(100)}
    await asyncio.gather(*(field.sow(name, due) for name, due in dues.items()))
    await wait_until(lambda: field.is_indexed(len(dues)), "the index knows them")
    index = field.index()

    assert await find(index, field, 10) == sorted(dues, key=dues.__getitem__)[:10]
    before = index.calls
    await find(index, field, 10)
    assert index.calls - before == 2  # the window fits by now: one count, one list


@pytest.mark.long
async def test_an_index_that_is_away_is_told_from_an_empty_one(tmp_path: Any, settings: Settings) -> None:
    """Who asks must wait, and not believe that nobody sleeps."""
    async with run_embedded(EmbeddedOptions(data=tmp_path, port=find_free_port(), ui_port=None)) as server:
        index = DueIndex(await server.connect(), "nobody-short")
        assert await index.find_first(10, datetime.now(UTC)) == []
    with pytest.raises(ServerUnreachable):
        await index.find_first(10, datetime.now(UTC))
